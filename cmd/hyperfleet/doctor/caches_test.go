// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"net"
	"strings"
	"testing"
	"time"
)

// A cache that a template names is connected to; one that is down is a warning, for machines
// are made all the same.
func TestCaches(t *testing.T) { //nolint:paralleltest // it speaks of the whole API server, as all here
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() })

	up, namespace := "http://"+listener.Addr().String(), env.Namespace(t)

	for name, cache := range map[string]map[string]any{
		"both-up": {"registryMirrors": []any{up}, "actionsCacheUrl": up + "/cache"},
		"down":    {"registryMirrors": []any{up}, "actionsCacheUrl": "http://127.0.0.1:1"},
		"up":      {"actionsCacheUrl": up},
		"without": nil,
	} {
		spec := map[string]any{
			"hypervisorClusterRef": map[string]any{"name": "pve"}, "resources": map[string]any{"cpu": int64(1), "memory": "1Gi"},
			"template": map[string]any{"proxmox": map[string]any{"templateId": int64(9000)}},
		}
		if cache != nil {
			spec["cache"] = cache
		}

		create(t, object("HypervisorMachineTemplate", namespace, name, spec))
	}

	d := &doctor{client: env.Client, now: time.Now(), namespace: namespace, operator: "hyperfleet-system", waiting: defaultWaiting}
	must(t, d.look(t.Context()))

	said := map[string]string{}

	for _, f := range d.report.Findings {
		if template, ok := strings.CutPrefix(f.Subject, "caches of HypervisorMachineTemplate "+namespace+"/"); ok {
			said[template] += string(f.Level) + " " + f.Message
		}
	}

	for template, want := range map[string]string{
		"both-up": "ok 2 answer", "up": "ok it answers", "without": "",
		"down": "warning http://127.0.0.1:1 does not answer here: dial tcp 127.0.0.1:1: connect: connection refused: " +
			"machines that cannot reach it go without it",
	} {
		if said[template] != want {
			t.Errorf("of template %s: %q, want %q", template, said[template], want)
		}
	}
}
