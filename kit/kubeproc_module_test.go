// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kit_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
)

// newGoCmpModule returns a module that other tests need, so this test downloads nothing.
func newGoCmpModule() kubeproc.Module {
	return kubeproc.Module{
		Path: "github.com/google/go-cmp", Version: "v0.7.0", Sum: "h1:wk8382ETsv4JYUZwIsn6YpYiWiBsYLSJiTsyBybVuN8=",
	}
}

func TestModuleDir(t *testing.T) {
	t.Parallel()

	dir, err := newGoCmpModule().Download(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	if _, err := os.Stat(filepath.Join(dir, "cmp", "compare.go")); err != nil {
		t.Error(err)
	}
}

func TestModuleWithOtherContentIsRejected(t *testing.T) {
	t.Parallel()

	module := newGoCmpModule()
	module.Sum = "h1:other"

	if dir, err := module.Download(t.Context()); err == nil || !strings.Contains(err.Error(), "want h1:other") {
		t.Errorf("got %q, %v", dir, err)
	}
}

func TestMissingModule(t *testing.T) {
	t.Parallel()

	_, err := kubeproc.Module{Path: "not a module", Version: "v1.0.0"}.Download(t.Context())
	if err == nil || !strings.Contains(err.Error(), "download not a module@v1.0.0") {
		t.Errorf("got %v", err)
	}
}
