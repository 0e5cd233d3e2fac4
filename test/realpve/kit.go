// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package realpve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/hyperfleet/hyperfleet/test/loopback"
)

// Box is one more Proxmox VE of the kit's, beside the site and as the kit makes it.
type Box struct{ box *box }

// Kit brings up a box that ends with the test. The test is skipped where the kit is not
// there, or can't run.
func Kit(t testing.TB) *Box {
	t.Helper()

	b, err := bringUp(t.Context(), "")
	skipOrFail(t, err)

	t.Cleanup(func() {
		if err := b.remove(); err != nil {
			t.Error(err)
		}
	})

	return &Box{b}
}

// NewCluster gives a site of its own with so many nodes, which ends with the test. Their disks are
// shared, and the first one is asked.
func NewCluster(t testing.TB, nodes int) *Site {
	t.Helper()

	b, err := bringUp(t.Context(), "", "--nodes", strconv.Itoa(nodes))
	skipOrFail(t, err)

	s, err := boxed(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}

	s.discarded = true

	t.Cleanup(func() {
		if err := b.remove(); err != nil {
			t.Error(err)
		}
	})

	return s
}

// Nodes are the names of the nodes of a site that the kit runs.
func (s *Site) Nodes() []string { return s.box.nodes() }

// Trouble is what the kit can do to a node.
type Trouble string

// Troubles of a node: Hang stops its programs, machines included; Cut pulls its network cable.
const (
	Hang Trouble = "hang"
	Cut  Trouble = "cut"
)

func (t Trouble) undo() string {
	if t == Hang {
		return "wake"
	}

	return "join"
}

// Trouble puts a node into trouble; heal takes it out again.
func (s *Site) Trouble(t testing.TB, node string, trouble Trouble) (heal func()) {
	t.Helper()

	if _, err := s.box.kit(t.Context(), string(trouble), node); err != nil {
		t.Fatal(err)
	}

	return func() {
		if _, err := s.box.kit(context.Background(), trouble.undo(), node); err != nil {
			t.Error(err)
		}
	}
}

// Offline waits until the cluster says that a node is.
func (s *Site) Offline(t testing.TB, node string) {
	t.Helper()

	err := waitFor(t.Context(), "node "+node+" to be offline", func() (bool, error) {
		var nodes []struct {
			Node   string `json:"node"`
			Status string `json:"status"`
		}

		err := s.get(t.Context(), "/nodes", &nodes)

		for _, n := range nodes {
			if n.Node == node {
				return n.Status == "offline", err
			}
		}

		return false, err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// MachinesOn tells how many machines of the part are listed on a node.
func (p *Part) MachinesOn(node string) int {
	p.t.Helper()

	rows, err := p.rows(context.Background())
	if err != nil {
		p.t.Error(err)
	}

	n := 0

	for _, r := range rows {
		if r.Node == node && p.mine(r.VMID) {
			n++
		}
	}

	return n
}

// skipOrFail ends a test that has no Proxmox VE.
func skipOrFail(t testing.TB, err error) {
	t.Helper()

	if none := missing(""); errors.As(err, &none) {
		t.Skip(none)
	}

	if err != nil {
		t.Fatal(err)
	}
}

// Compare asks the same of the box and of a simulator, by its program, and gives what the kit
// says of the differences.
func (b *Box) Compare(t testing.TB, simulator string) string {
	t.Helper()

	for _, command := range []string{"template", "account"} {
		if _, err := b.box.kit(t.Context(), command); err != nil {
			t.Fatal(err)
		}
	}

	port := loopback.Port(t)

	out, err := execute(t.Context(), []string{fmt.Sprintf("SIM_PORT=%d", port)},
		filepath.Join(filepath.Dir(b.box.program), "compare", "run"), b.box.dir, simulator)
	if err != nil {
		t.Fatal(err)
	}

	return out
}

// Require skips a test that starts a program which needs the kit, where that can't run.
func Require(t testing.TB) {
	t.Helper()

	if os.Getenv("PVE_ENDPOINT") != "" {
		t.Skip("PVE_ENDPOINT is set, and its template need not have the runner of the simulated GitHub: " +
			"hyperfleet-demo --hypervisor real --address ADDRESS runs a job on it")
	}

	_, err := newBox(t.Context(), t.TempDir())
	skipOrFail(t, err)
}
