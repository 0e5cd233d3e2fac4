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
)

// data is the link to the folder that has the files.
const data = "..data"

// Mount mounts files in a folder, or others in the place of those that are.
func Mount(t testing.TB, dir string, texts map[string]string) {
	t.Helper()

	entries, err := os.ReadDir(dir)
	must(t, err)

	// Nothing is removed, so that no name comes again.
	folder := filepath.Join(dir, fmt.Sprintf("..%d", len(entries)))
	must(t, os.Mkdir(folder, 0o700))

	for name, text := range texts {
		must(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))

		if err := os.Symlink(filepath.Join(data, name), filepath.Join(dir, name)); !errors.Is(err, fs.ErrExist) {
			must(t, err)
		}
	}

	// In one moment.
	next := folder + ".link"
	must(t, os.Symlink(filepath.Base(folder), next))
	must(t, os.Rename(next, filepath.Join(dir, data)))
}

func must(t testing.TB, err error) {
	t.Helper()

	if err != nil {
		t.Fatal(err)
	}
}
