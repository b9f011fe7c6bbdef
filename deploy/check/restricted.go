package main

import (
	"errors"
	"fmt"
	"slices"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// restricted holds pods to what Kubernetes' restricted profile asks for, and to what
// it leaves open: resources are named, and what is mounted is there. A DaemonSet is
// about a directory of the node: it may have that, and root may give it to another user before.
func restricted(o runtime.Object) error {
	var t core.PodTemplateSpec
	var selector map[string]string
	ofNode := false
	switch o := o.(type) {
	case *apps.Deployment:
		t, selector = o.Spec.Template, o.Spec.Selector.MatchLabels
	case *apps.DaemonSet:
		t, selector, ofNode = o.Spec.Template, o.Spec.Selector.MatchLabels, true
	default:
		return nil
	}
	if len(selector) == 0 {
		return errors.New("it selects nothing")
	}
	for k, v := range selector {
		if t.Labels[k] != v {
			return fmt.Errorf("it selects %s=%s, which its pods are not", k, v)
		}
	}
	if a := t.Spec.AutomountServiceAccountToken; a == nil || *a {
		return errors.New("its pods get a token that they do not need")
	}
	var faults []error
	for _, v := range t.Spec.Volumes {
		if v.HostPath != nil && !ofNode {
			faults = append(faults, fmt.Errorf("volume %s is a directory of the node", v.Name))
		}
	}
	for _, c := range slices.Concat(t.Spec.InitContainers, t.Spec.Containers) {
		before := ofNode && len(c.Command) > 0 && c.Command[0] == "chown"
		if err := container(&t.Spec, &c, before); err != nil {
			faults = append(faults, fmt.Errorf("container %s: %w", c.Name, err))
		}
	}
	return errors.Join(faults...)
}

// container does the same for one of a pod's. chowns is set if it only changes owners.
func container(p *core.PodSpec, c *core.Container, chowns bool) error {
	for _, m := range c.VolumeMounts {
		if !slices.ContainsFunc(p.Volumes, func(v core.Volume) bool { return v.Name == m.Name }) {
			return fmt.Errorf("no volume %s", m.Name)
		}
	}
	if c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() ||
		c.Resources.Limits.Memory().IsZero() {
		return errors.New("it names no resources")
	}
	s, ps := c.SecurityContext, p.SecurityContext
	var added []core.Capability
	if chowns {
		added = []core.Capability{"CHOWN"}
	}
	switch {
	case s == nil || ps == nil:
		return errors.New("no security context")
	case s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation:
		return errors.New("it may get more rights than it starts with")
	case s.Capabilities == nil || !slices.Contains(s.Capabilities.Drop, "ALL") ||
		!slices.Equal(s.Capabilities.Add, added):
		return errors.New("it has capabilities")
	case s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem:
		return errors.New("it may write its root")
	case !chowns && (ps.RunAsNonRoot == nil || !*ps.RunAsNonRoot || s.RunAsNonRoot != nil &&
		!*s.RunAsNonRoot):
		return errors.New("it may be root")
	case ps.SeccompProfile == nil || ps.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault:
		return errors.New("no seccomp profile")
	}
	return nil
}
