// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/hyperfleet/hyperfleet/test/must"
)

// dataLink is the name of the symbolic link to the directory with the files.
const dataLink = "..data"

// Mount writes files into a directory, or replaces the files of an earlier call.
func Mount(t testing.TB, dir string, texts map[string]string) {
	t.Helper()

	entries, err := os.ReadDir(dir)
	must.Do(t, err)

	// Old directories are never deleted, so the number of entries gives a new name.
	folder := filepath.Join(dir, fmt.Sprintf("..%d", len(entries)))
	must.Do(t, os.Mkdir(folder, 0o700))

	for name, text := range texts {
		must.Do(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))

		if err := os.Symlink(filepath.Join(dataLink, name), filepath.Join(dir, name)); !errors.Is(err, fs.ErrExist) {
			must.Do(t, err)
		}
	}

	// Replace the link atomically.
	next := folder + ".link"
	must.Do(t, os.Symlink(filepath.Base(folder), next))
	must.Do(t, os.Rename(next, filepath.Join(dir, dataLink)))
}
