// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeproc

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"

	"k8s.io/client-go/rest"
)

// Module is a Go module whose files are read but not imported, such as the CustomResourceDefinitions of
// another project. It is not in our go.mod files. The go command downloads it, and its checksum is
// compared with Sum.
type Module struct {
	Path, Version string
	// Sum is the checksum of the module's files in the format of the checksum database, h1:...
	Sum string
}

// Download returns the folder with the module's files. It downloads the files unless the module
// cache has them.
func (m Module) Download(ctx context.Context) (string, error) {
	// #nosec G204 -- callers name modules by constants
	out, err := exec.CommandContext(ctx, "go", "mod", "download", "-json", m.Path+"@"+m.Version).Output()

	var found struct{ Dir, Sum, Error string }
	if jsonErr := json.Unmarshal(out, &found); jsonErr != nil && err == nil {
		err = jsonErr
	}

	switch {
	case err != nil:
		return "", fmt.Errorf("download %s@%s: %w: %s", m.Path, m.Version, err, found.Error)
	case found.Sum != m.Sum:
		return "", fmt.Errorf("download %s@%s: its checksum is %s, want %s", m.Path, m.Version, found.Sum, m.Sum)
	}

	return found.Dir, nil
}

// Apply does what [Apply] does with files of the module. It downloads the module.
func (m Module) Apply(ctx context.Context, config *rest.Config, files ...string) error {
	dir, err := m.Download(ctx)
	if err != nil {
		return err
	}

	paths := make([]string, 0, len(files))
	for _, file := range files {
		paths = append(paths, filepath.Join(dir, filepath.FromSlash(file)))
	}

	return Apply(ctx, config, paths...)
}
