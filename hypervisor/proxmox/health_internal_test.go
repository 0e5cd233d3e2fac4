// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"strings"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"
)

// A site is set aside after failures in a row, probed by one machine at a time, and left alone
// for longer each time that the probe fails.
func TestSitesAreSetAside(t *testing.T) {
	t.Parallel()

	clk := testclock.NewFakeClock(time.Unix(1_800_000_000, 0))
	h := &health{clock: clk}
	at, other := nodeSite("pve1", 9000), nodeSite("pve1", 9001)

	for range asideAfter - 1 {
		h.failed(at, "boom", false)
	}

	if why := h.aside("a", at); why != "" {
		t.Fatalf("set aside after %d failures: %s", asideAfter-1, why)
	}

	h.failed(at, "boom", false)

	if why := h.aside("a", at); !strings.Contains(why, "template 9000 on node pve1 failed 3 times in a row") || !strings.Contains(why, "boom") {
		t.Fatalf("not set aside, or without words: %q", why)
	}

	if why := h.aside("a", other); why != "" {
		t.Errorf("another template bears it as well: %s", why)
	}

	if got := h.troubles("pve1"); len(got) != 1 || len(h.troubles("pve2")) != 0 {
		t.Errorf("troubles: %q, of another node %q", got, h.troubles("pve2"))
	}

	for wait := asideFirst; wait <= 4*asideLast; wait *= 2 {
		clk.Step(min(wait, asideLast) - time.Second)

		if h.aside("a", at) == "" {
			t.Fatalf("back before its %s were over", min(wait, asideLast))
		}

		clk.Step(time.Second)

		if why := h.aside("a", at); why != "" {
			t.Fatalf("no probe after %s: %s", wait, why)
		}

		h.admit("a", at)

		if h.aside("a", at) != "" || h.aside("b", at) == "" {
			t.Fatal("one machine is the probe, and no other")
		}

		h.failed(at, "boom", false)
	}

	h.worked(at)

	if why := h.aside("b", at); why != "" {
		t.Errorf("set aside though a machine was made: %s", why)
	}
}

// A storage that was full once gets nothing more.
func TestAFullStorageIsSetAsideAtOnce(t *testing.T) {
	t.Parallel()

	h := &health{clock: testclock.NewFakeClock(time.Unix(1_800_000_000, 0))}
	h.failed(storageSite("pve1/local-lvm"), "full", true)

	if h.aside("a", nodeSite("pve1", 9000), storageSite("pve1/local-lvm")) == "" {
		t.Error("the full storage is used")
	}

	if why := h.aside("a", nodeSite("pve2", 9000), storageSite("pve2/local-lvm")); why != "" {
		t.Errorf("another node's storage is not: %s", why)
	}
}
