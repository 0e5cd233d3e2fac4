// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
)

// programs are the executables that the demo starts.
type programs struct {
	// kube is the folder with etcd and kube-apiserver.
	kube                                           string
	hyperfleet, pvesim, forgesim, bootstrapService string
}

// findPrograms finds all programs. It searches the folder of this executable first, so that all programs
// come from the same build, and then the folders that procrun.FindBinaries searches.
func findPrograms() (programs, error) {
	self, err := os.Executable()
	if err != nil {
		return programs{}, fmt.Errorf("find this executable: %w", err)
	}

	kube, err := procrun.FindBinaries("etcd", "kube-apiserver")
	if err != nil {
		return programs{}, fmt.Errorf("find programs: %w", err)
	}

	p := programs{kube: kube}

	var errs []error

	for name, path := range map[string]*string{
		"hyperfleet": &p.hyperfleet, "pvesim": &p.pvesim, "forgesim": &p.forgesim, "bootstrap-service": &p.bootstrapService,
	} {
		*path, err = findProgram(filepath.Dir(self), name)
		errs = append(errs, err)
	}

	return p, errors.Join(errs...)
}

func findProgram(programDir, name string) (string, error) {
	path := filepath.Join(programDir, name)
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
		return path, nil
	}

	dir, err := procrun.FindBinaries(name)
	if err != nil {
		return "", fmt.Errorf("find program %s: it is not in the folder of this executable (%s): run make build", name, programDir)
	}

	return filepath.Join(dir, name), nil
}
