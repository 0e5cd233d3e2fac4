// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package procrun_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
)

func TestMissingProgramsAreNamed(t *testing.T) {
	t.Setenv(procrun.EnvAssets, t.TempDir())

	_, err := procrun.FindBinaries("etcd", "no-such-program")
	if !errors.Is(err, procrun.ErrBinariesNotFound) || !strings.Contains(err.Error(), "etcd, no-such-program") ||
		!strings.Contains(err.Error(), "make setup") {
		t.Errorf("err = %v", err)
	}
}
