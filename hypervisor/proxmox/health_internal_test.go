// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"slices"
	"strings"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// A template is excluded after failures in a row and probed by one machine at a time. Each failed probe extends
// the exclusion.
func TestCircuitBreaker(t *testing.T) {
	t.Parallel()

	clk := testclock.NewFakeClock(time.Unix(1_800_000_000, 0))
	h := &breaker{clock: clk}
	at, other := newTemplateTarget("pve1", 9000), newTemplateTarget("pve1", 9001)

	for range exclusionThreshold - 1 {
		h.recordFailure(at, "boom", exclusionThreshold)
	}

	if why := h.exclusionReason("a", at); why != "" {
		t.Fatalf("set aside after %d failures: %s", exclusionThreshold-1, why)
	}

	h.recordFailure(at, "boom", exclusionThreshold)

	if why := h.exclusionReason("a", at); !strings.Contains(why, "template 9000 on node pve1 failed 3 times in a row") || !strings.Contains(why, "boom") {
		t.Fatalf("not set aside, or without words: %q", why)
	}

	if why := h.exclusionReason("a", other); why != "" {
		t.Errorf("another template bears it as well: %s", why)
	}

	if got := h.listExclusions("pve1"); len(got) != 1 || len(h.listExclusions("pve2")) != 0 {
		t.Errorf("troubles: %q, of another node %q", got, h.listExclusions("pve2"))
	}

	for wait := initialExclusion; wait <= 4*maxExclusion; wait *= 2 {
		clk.Step(min(wait, maxExclusion) - time.Second)

		if h.exclusionReason("a", at) == "" {
			t.Fatalf("back before its %s were over", min(wait, maxExclusion))
		}

		clk.Step(time.Second)

		if why := h.exclusionReason("a", at); why != "" {
			t.Fatalf("no probe after %s: %s", wait, why)
		}

		h.recordPlacement("a", at)

		if h.exclusionReason("a", at) != "" || h.exclusionReason("b", at) == "" {
			t.Fatal("one machine is the probe, and no other")
		}

		h.recordFailure(at, "boom", exclusionThreshold)
	}

	h.recordSuccess(at)

	if why := h.exclusionReason("b", at); why != "" {
		t.Errorf("excluded although a machine was created: %s", why)
	}
}

// A failed task excludes what has failed: the storage of the disks only if it was full, and not if the node had too little
// memory or the storage of the ISO was full.
func TestFailureExcludesItsCause(t *testing.T) {
	t.Parallel()

	const storage = "pve1/local-lvm"

	for name, tc := range map[string]struct {
		storage, exit string
		isStorage     bool
	}{
		"a full storage":     {storage, "clone failed: lvcreate error: insufficient free space", true},
		"too little memory":  {storage, "kvm: cannot set up guest memory 'pc.ram': Cannot allocate memory", false},
		"a full ISO storage": {"", "write failed: No space left on device", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			clk := testclock.NewFakeClock(time.Unix(1_800_000_000, 0))
			p := &Provider{clock: clk, breaker: &breaker{clock: clk}}
			m := &machine{id: 100000, node: "pve1", origin: origin{template: 9000, storage: storage}}

			for range exclusionThreshold {
				if err := p.handleTaskFailure(m, tc.storage, "Failed", "do something", tc.exit); !hypervisor.Is(err, hypervisor.NoCapacity) {
					t.Fatalf("the error is %v, want the kind %s", err, hypervisor.NoCapacity)
				}
			}

			byStorage := p.breaker.exclusionReason("a", newStorageTarget(storage))
			byTemplate := p.breaker.exclusionReason("a", newTemplateTarget("pve1", 9000))

			if (byStorage != "") != tc.isStorage || (byTemplate == "") != tc.isStorage {
				t.Errorf("excluded: storage %q, template %q", byStorage, byTemplate)
			}
		})
	}
}

// A storage is excluded after it was full once, and each node that writes to it reports it.
func TestFullStorageIsExcludedAtOnce(t *testing.T) {
	t.Parallel()

	h := &breaker{clock: testclock.NewFakeClock(time.Unix(1_800_000_000, 0))}
	h.recordFailure(newStorageTarget("pve1/local-lvm"), "full", excludeAtOnce)

	if h.exclusionReason("a", newTemplateTarget("pve1", 9000), newStorageTarget("pve1/local-lvm")) == "" {
		t.Error("the full storage is used")
	}

	if why := h.exclusionReason("a", newTemplateTarget("pve2", 9000), newStorageTarget("pve2/local-lvm")); why != "" {
		t.Errorf("another node's storage is not: %s", why)
	}

	h.recordFailure(newStorageTarget("ceph"), "full", excludeAtOnce)

	const until = " failed once and is excluded until 08:01:00Z: full"

	for node, want := range map[string][]string{
		"pve1": {"storage ceph" + until, "storage pve1/local-lvm" + until}, "pve2": {"storage ceph" + until},
	} {
		if got := h.listExclusions(node); !slices.Equal(got, want) {
			t.Errorf("node %s reports %q, want %q", node, got, want)
		}
	}
}
