// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

// capabilities holds the files in which libvirtd keeps QEMU's capabilities. It takes seconds to ask QEMU for
// them, so the second host of a program has those of the first.
var capabilities struct { //nolint:gochecknoglobals // it belongs to the program
	mu    sync.Mutex
	files map[string][]byte
}

const capabilitiesDir = "libvirt/qemu/cache/capabilities"

// keepCapabilities reads the files of the first host.
func keepCapabilities(cache string) error {
	capabilities.mu.Lock()
	defer capabilities.mu.Unlock()

	if capabilities.files != nil {
		return nil
	}

	files := map[string][]byte{}

	found, err := filepath.Glob(filepath.Join(cache, capabilitiesDir, "*.xml"))
	if err != nil {
		return fmt.Errorf("keep the capabilities of QEMU: %w", err)
	}

	for _, file := range found {
		content, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("keep the capabilities of QEMU: %w", err)
		}

		files[filepath.Base(file)] = content
	}

	capabilities.files = files

	return nil
}

// copyCapabilities writes the files of the first host.
func copyCapabilities(cache string) error {
	capabilities.mu.Lock()
	defer capabilities.mu.Unlock()

	dir := filepath.Join(cache, capabilitiesDir)
	if err := os.MkdirAll(dir, accessToFolders); err != nil {
		return fmt.Errorf("copy the capabilities of QEMU: %w", err)
	}

	for name, content := range capabilities.files {
		if err := os.WriteFile(filepath.Join(dir, name), content, ownerOnly); err != nil {
			return fmt.Errorf("copy the capabilities of QEMU: %w", err)
		}
	}

	return nil
}
