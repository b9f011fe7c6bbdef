package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	core "k8s.io/api/core/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// daemonConfig prints the daemon's configuration, which one ConfigMap of the objects has.
func daemonConfig(_ string, data []byte) error {
	docs := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return errors.New("no ConfigMap with a locksidecar.yaml")
		}
		if err != nil {
			return err
		}
		var c core.ConfigMap
		if err := yaml.Unmarshal(doc, &c); err != nil || c.Kind != "ConfigMap" ||
			c.Data["locksidecar.yaml"] == "" {
			continue
		}
		fmt.Print(c.Data["locksidecar.yaml"])
		return nil
	}
}
