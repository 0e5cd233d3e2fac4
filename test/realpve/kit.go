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
	"strings"
	"testing"
	"time"

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

// NewCluster gives a site of its own with so many nodes, which ends with the test. Their disks and
// cloud-init ISOs are shared, and the first one is asked. The kit's nodes do not reach each other by
// SSH, so that no file can be uploaded for the own storage of another one than that.
func NewCluster(t testing.TB, nodes int) *Site {
	t.Helper()

	b, err := bringUp(t.Context(), "", "--nodes", strconv.Itoa(nodes))
	skipOrFail(t, err)

	t.Cleanup(func() {
		if err := b.remove(); err != nil {
			t.Error(err)
		}
	})

	s, err := boxed(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}

	s.discarded = true

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

// RemoveNode removes a node that is cut off from the cluster for good, and its machines with
// it, as an administrator does.
func (s *Site) RemoveNode(t testing.TB, node string) {
	t.Helper()

	if _, err := s.box.shell(t.Context(), fmt.Sprintf("pvecm delnode %[1]s\nrm -r /etc/pve/nodes/%[1]s", node)); err != nil {
		t.Fatal(err)
	}
}

// forgetting is longer than the cluster keeps what a node said last of its machines: 300 s.
const forgetting = 8 * time.Minute

// Forgotten waits until the cluster tells no status of a silent node's machines any more.
func (s *Site) Forgotten(t testing.TB, node string) {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), forgetting)
	defer cancel()

	err := wait(ctx, "the status of the machines of node "+node+" to be unknown", func() (bool, error) {
		var machines []struct {
			Node   string `json:"node"`
			Status string `json:"status"`
		}

		err := s.get(ctx, "/cluster/resources?type=vm", &machines)

		for _, m := range machines {
			if m.Node == node && m.Status != "unknown" {
				return false, err
			}
		}

		return err == nil, err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// File is a machine's configuration in the cluster's own file system.
type File struct {
	Node string
	ID   int
	Text string
}

// Files are those of all machines, whatever state their nodes are in.
func (s *Site) Files(t testing.TB) []File {
	t.Helper()

	out, err := s.box.shell(t.Context(), "cd /etc/pve/nodes\nfor f in */qemu-server/*.conf; do echo \"== $f\"; cat $f || true; done")
	if err != nil {
		t.Fatal(err)
	}

	var files []File

	for part := range strings.SplitSeq("\n"+out, "\n== ") {
		path, text, _ := strings.Cut(part, "\n")
		node, name, ok := strings.Cut(path, "/qemu-server/")

		if id, err := strconv.Atoi(strings.TrimSuffix(name, ".conf")); ok && err == nil {
			files = append(files, File{Node: node, ID: id, Text: text})
		}
	}

	return files
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
