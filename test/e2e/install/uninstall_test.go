// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/test/kube"
)

// TestInterruptedUninstall checks that a release whose machines could not be deleted is usable again, with its values,
// after the commands of the page.
func TestInterruptedUninstall(t *testing.T) {
	t.Parallel()

	const upgrade = "helm upgrade hyperfleet hyperfleet-0.1.0.tgz --namespace hyperfleet-system --reuse-values"

	u := newUser(t, kube.Start(t), "")
	u.runCommands(readTutorialBlocks(t)[0])
	u.runCommands(upgrade + " --set networkPolicies=false\n")

	// No pod runs the Job here, so that it does not end.
	u.runCommands("helm uninstall hyperfleet --namespace hyperfleet-system --timeout 2s 2>&1 && exit 1 || true\n")

	if output := u.runCommands(upgrade + " 2>&1 || true\n"); !strings.Contains(output, "has no deployed releases") {
		t.Errorf("an upgrade of a release that is being uninstalled: %s", output)
	}

	for _, block := range readAllBlocks(t, root+"docs/guides/uninstall.md") {
		if strings.Contains(block, "helm rollback") {
			u.runCommands(strings.ReplaceAll(block, "REVISION", "2"))
		}
	}

	if jobs := u.runCommands("kubectl get jobs --namespace hyperfleet-system --output name\n"); jobs != "" {
		t.Errorf("the Job still runs: %s", jobs)
	}

	u.runCommands(upgrade + "\n")

	if values := u.runCommands("helm get values hyperfleet --namespace hyperfleet-system\n"); !strings.Contains(values, "networkPolicies: false") {
		t.Errorf("the release has lost its values: %s", values)
	}
}
