package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
)

func compose(name string, data []byte) error {
	dir, err := filepath.Abs(filepath.Dir(name))
	if err != nil {
		return err
	}
	p, err := loader.LoadWithContext(context.Background(), types.ConfigDetails{
		WorkingDir:  dir,
		ConfigFiles: []types.ConfigFile{{Filename: name, Content: data}},
		Environment: types.Mapping{},
	})
	if err != nil {
		return err
	}
	for _, s := range p.Services {
		if s.Build == nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(s.Build.Context, s.Build.Dockerfile)); err != nil {
			return fmt.Errorf("service %s: %w", s.Name, err)
		}
	}
	fmt.Println(name, p.ServiceNames())
	return nil
}
