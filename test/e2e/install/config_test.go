// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"strings"
	"testing"
	"time"
)

// A ConfigMap that was changed, by whatever means, is in force without a rollout; one that is
// invalid harms nobody.
func TestAChangedConfigMapIsTakenUp(t *testing.T) {
	t.Parallel()

	u, pod := installed(t)

	change := func(from, to string) {
		t.Helper()
		u.types("kubectl -n " + usual + " get configmap hyperfleet-runners -o yaml | sed 's/" + from + "/" + to + "/' | kubectl replace -f -")
		pod.UpdateVolumes()
	}

	change("level: INFO", "level: LOUD")

	for deadline := time.Now().Add(patience); !strings.Contains(pod.Log(t), "changed configuration is invalid"); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it does not say that the configuration is invalid:\n%s", pod.Log(t))
		}
	}

	ready(t, pod)

	change("level: LOUD", "level: DEBUG")
	pod.WaitAndRestart(t)
	ready(t, pod)

	if said := pod.Log(t); !strings.Contains(said, `"DEBUG"`) || !strings.Contains(said, "restarted with the new configuration") {
		t.Errorf("the new configuration is not in force:\n%s", said)
	}
}
