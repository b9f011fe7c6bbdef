package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
)

func manifests(name string, data []byte) error {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientscheme.AddToScheme(scheme),
		monitoring.AddToScheme(scheme)); err != nil {
		return err
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	docs := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for n := 0; ; {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			if n == 0 {
				return errors.New("no object in it")
			}
			return nil
		}
		if err != nil {
			return err
		}
		if empty(doc) {
			continue
		}
		n++
		o, kind, err := decoder.Decode(doc, nil, nil)
		if err != nil {
			return fmt.Errorf("object %d: %w", n, err)
		}
		if err := restricted(o); err != nil {
			return fmt.Errorf("%s: %w", kind.Kind, err)
		}
		fmt.Println(name, kind.GroupVersion(), kind.Kind)
	}
}

// empty says that there is nothing but comments in doc.
func empty(doc []byte) bool {
	for line := range bytes.Lines(doc) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' && string(line) != "---" {
			return false
		}
	}
	return true
}
