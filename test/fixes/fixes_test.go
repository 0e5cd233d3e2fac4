// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fixes

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestFindCommands checks that a command ends before the rest of its sentence.
func TestFindCommands(t *testing.T) {
	t.Parallel()

	got := findCommands("the addresses are unknown: read them with kubectl get secret a -n b -o go-template='{{.data.x | base64decode}}', " +
		"and write them down with kubectl annotate virtualmachine c -n b --overwrite d/e=ADDRESS/PREFIXLENGTH. " +
		"It failed: run kubectl describe csr f for the reason; or run `kubectl delete x -n y z` (now)")
	want := []string{
		"kubectl get secret a -n b -o go-template='{{.data.x | base64decode}}'",
		"kubectl annotate virtualmachine c -n b --overwrite d/e=ADDRESS/PREFIXLENGTH", "kubectl describe csr f", "kubectl delete x -n y z",
	}

	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("commands (-want +got):\n%s", diff)
	}
}
