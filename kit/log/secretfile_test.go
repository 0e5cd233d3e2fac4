// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package log_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/kit/log"
)

func TestSecretFiles(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	write("first\n")

	if got, err := log.ReadSecretFile(path); err != nil || got.Reveal() != "first" {
		t.Errorf("log.ReadSecret() = %q, %v", got.Reveal(), err)
	}

	write("second")

	if got, err := log.ReadSecretFile(path); err != nil || got.Reveal() != "second" {
		t.Errorf("after rotation log.ReadSecret() = %q, %v", got.Reveal(), err)
	}

	write(" \n")

	if _, err := log.ReadSecretFile(path); err == nil {
		t.Errorf("empty: %v", err)
	}

	write(strings.Repeat("x", 70000))

	if _, err := log.ReadSecretFile(path); err == nil || strings.Contains(err.Error(), "xx") {
		t.Errorf("large: %v", err)
	}

	if _, err := log.ReadSecretFile(""); err == nil {
		t.Errorf("unset: %v", err)
	}

	if _, err := log.ReadSecretFile(path + "x"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
}
