// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve_test

import (
	"bytes"
	"testing"

	"github.com/kdomanski/iso9660"
)

// testISO is an image as a client would upload it, labelled cidata.
func testISO(t *testing.T, files map[string]string) []byte {
	t.Helper()
	w, err := iso9660.NewWriter()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Cleanup() }()
	for name, text := range files {
		if err := w.AddFile(bytes.NewReader([]byte(text)), name); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := w.WriteTo(&out, "cidata"); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
