// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package standin_test

import (
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/sim/forge/standin"
)

// A program initializes its imports when it starts. The simulator of GitHub's API needs more time for
// this than a job.
func TestStandInsImportLittle(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.FieldsSeq(string(out)) {
		ours := strings.HasPrefix(name, "github.com/hyperfleet/hyperfleet/sim/") && name != "github.com/hyperfleet/hyperfleet/sim/github"
		if !ours && name != "k8s.io/utils/clock" && !strings.HasSuffix(name, "/yaml") && !strings.HasSuffix(name, "/yaml/v2") {
			t.Errorf("imports %s", name)
		}
	}
}

func TestStandInsAreKnownByName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{"runner": true, "generic-job": true, "github": false, "": false} {
		var output strings.Builder
		code, known := standin.Run(t.Context(), []string{name, "annotate"}, io.Discard, &output)
		if known != want || code == 0 || known && output.Len() == 0 {
			t.Errorf("%q: known %t, exit %d: %s", name, known, code, &output)
		}
	}
	if _, known := standin.Run(t.Context(), nil, io.Discard, io.Discard); known {
		t.Error("known without a name")
	}
}
