// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"strings"
	"testing"
	"time"
)

// TestChangedConfigMapIsUsed checks that a changed ConfigMap takes effect without a rollout, and that an invalid
// ConfigMap is only logged.
func TestChangedConfigMapIsUsed(t *testing.T) {
	t.Parallel()

	u, pod := installRunners(t)

	change := func(from, to string) {
		t.Helper()
		u.runCommands("kubectl -n " + defaultNamespace + " get configmap hyperfleet-runners -o yaml | sed 's/" + from + "/" + to + "/' | kubectl replace -f -")
		pod.UpdateVolumes()
	}

	change("level: INFO", "level: LOUD")

	for deadline := time.Now().Add(waitTimeout); !strings.Contains(pod.Log(t), "changed configuration is invalid"); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the operator does not log that the configuration is invalid:\n%s", pod.Log(t))
		}
	}

	waitUntilReady(t, pod)

	change("level: LOUD", "level: DEBUG")
	pod.WaitAndRestart(t)
	waitUntilReady(t, pod)

	if output := pod.Log(t); !strings.Contains(output, `"DEBUG"`) || !strings.Contains(output, "restarted with the new configuration") {
		t.Errorf("the new configuration is not used:\n%s", output)
	}
}
