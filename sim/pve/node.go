// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Outage says how long a cluster takes to notice that a node is in trouble, and
// its callers to give up. Zero means at once.
type Outage struct {
	// Offline is until the other nodes call a node that hangs or is cut off
	// offline; up to 20 s on a real cluster.
	Offline time.Duration `json:"offline"`
	// Forget is until what such a node reported last is dropped: its VMs have
	// neither name nor status then. 300 s on a real cluster.
	Forget time.Duration `json:"forget"`
	// Timeout is what a call for such a node waits before it fails; 30 s on a
	// real cluster.
	Timeout time.Duration `json:"timeout"`
	// Unroutable is until calls for a node that is cut off fail because there
	// is no route to it, which they do after NoRoute; 8 s on a real cluster.
	Unroutable time.Duration `json:"unroutable"`
	NoRoute    time.Duration `json:"noRoute"`
}

func defaultOutage() Outage {
	return Outage{
		Offline: 20 * time.Second, Forget: 5 * time.Minute, Timeout: 30 * time.Second,
		Unroutable: time.Minute, NoRoute: 8 * time.Second,
	}
}

// node is a member of the cluster.
type node struct {
	Node

	started time.Time
	trouble FaultKind // one of nodeFaults, or empty
	since   time.Time
}

func nodeFaults() []FaultKind {
	return []FaultKind{FaultNodeHung, FaultNodeCut, FaultNodeLost, FaultNoReports}
}

// apart is true for a node that the others don't hear.
func (n *node) apart() bool { return n.trouble != "" && n.trouble != FaultNoReports }

// members are the nodes that the cluster has; s.mu is held.
func (s *Server) members() []Node {
	return slices.DeleteFunc(slices.Clone(s.model.Nodes), func(n Node) bool { return s.nodes[n.Name].trouble == FaultNodeLost })
}

// lose takes the VMs of a node that is removed from the cluster, and what is on its own disks;
// s.mu is held.
func (s *Server) lose(name string) {
	for _, m := range s.vms {
		if m.node == name {
			s.powerOff(m)
			s.remove(m)
		}
	}
	for _, st := range s.stores {
		if st.key.node == name {
			clear(st.vols)
		}
	}
}

// SetNodeDown cuts a node off the network, or puts it back: [FaultNodeCut].
func (s *Server) SetNodeDown(name string, down bool) {
	kind := FaultKind("")
	if down {
		kind = FaultNodeCut
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setTrouble(name, kind)
}

// setTrouble begins a node's trouble or, with an empty kind, ends it; s.mu is held.
func (s *Server) setTrouble(name string, kind FaultKind) {
	n := s.nodes[name]
	if n == nil || n.trouble == kind || n.trouble == FaultNodeLost {
		return
	}
	n.trouble, n.since = kind, s.clk.Now()
	if kind == FaultNodeLost {
		s.lose(name)
	}
}

// noticed is true once the others call a node offline; s.mu is held.
func (s *Server) noticed(n *node) bool {
	return n.apart() && s.clk.Since(n.since) >= s.model.Outage.Offline
}

// reported is the time of the last report of a node that counts; false when it
// has none. s.mu is held.
func (s *Server) reported(name string, at time.Time) (time.Time, bool) {
	n := s.nodes[name]
	switch {
	case n.trouble == "":
		return at, true
	case n.trouble == FaultNoReports, s.clk.Since(n.since) >= s.model.Outage.Forget:
		return time.Time{}, false
	case n.since.Before(at):
		return n.since, true
	default:
		return at, true
	}
}

// unreachable fails calls for a node that is in trouble, after the time that
// takes. The first node that is well takes the calls and passes them on.
func (s *Server) unreachable(c *call, n *node) error {
	s.mu.Lock()
	kind, since := n.trouble, n.since
	s.mu.Unlock()
	status, reason, wait := statusProxy, "Connection timed out", s.model.Outage.Timeout
	switch {
	case kind == FaultNodeHung:
		status = statusProxyTimeout
	case kind == FaultNodeLost:
		reason, wait = "No route to host", s.model.Outage.NoRoute
	case kind != FaultNodeCut:
		return nil
	case s.clk.Since(since) >= s.model.Outage.Unroutable:
		reason, wait = "No route to host", s.model.Outage.NoRoute
	}
	if !s.sleep(c.ctx, wait) {
		return errGone
	}
	return &apiError{status: status, reason: reason, form: bodyEmpty}
}

// noQuorum fails what writes to the cluster file system while most nodes are
// apart from the one that is asked.
func (s *Server) noQuorum(c *call) error {
	s.mu.Lock()
	quorate := s.quorate()
	s.mu.Unlock()
	path := strings.Join(c.route.pattern, "/")
	if quorate || !isWrite(c.method) || path == "access/ticket" {
		return nil
	}
	last := c.route.pattern[len(c.route.pattern)-1]
	switch {
	case strings.HasPrefix(path, "access/"), strings.HasPrefix(path, "pools"):
		return dief("cfs-lock 'file-user_cfg' error: no quorum!")
	case last == "clone", last == "start", last == "qemu":
		return dief("cluster not ready - no quorum?")
	case last == "config" && c.method == http.MethodPut:
		return dief("unable to open file '/etc/pve/nodes/%s/qemu-server/%d.conf.tmp.%d' - Permission denied",
			c.node, c.vmid, c.id)
	default:
		return nil
	}
}

// quorate is true while most nodes hear each other; s.mu is held.
func (s *Server) quorate() bool {
	well, all := 0, s.members()
	for _, n := range all {
		well += flag(!s.noticed(s.nodes[n.Name]))
	}
	return well*2 > len(all)
}

// nodeRow is a node in a listing; its load needs Sys.Audit. s.mu is held.
func (s *Server) nodeRow(n *node, who identity) map[string]any {
	row := map[string]any{"node": n.Name, "id": "node/" + n.Name, "type": "node", "status": "unknown"}
	see := s.mayLocked(who, "/nodes/"+n.Name, "Sys.Audit") == nil
	if at, ok := s.reported(n.Name, s.clk.Now()); ok {
		row["level"] = ""
		if see {
			row["maxcpu"], row["maxmem"], row["maxdisk"] = n.CPUs, n.Memory, nodeDisk
		}
		if !s.noticed(n) {
			row["status"] = "online"
			if see {
				row["cpu"], row["mem"], row["disk"] = 0.01, s.load(n.Name), nodeDisk/2 //nolint:mnd // any load will do
				row["uptime"] = int64(at.Sub(n.started).Seconds())
			}
		}
	}
	if s.noticed(n) {
		row["status"] = "offline"
	}
	return row
}

// nodeDisk is the size of a node's root file system.
const nodeDisk = 100 * gib

// entryNode is the node that answers: the first one that the others hear; s.mu
// is held.
func (s *Server) entryNode() string {
	for _, n := range s.model.Nodes {
		if !s.nodes[n.Name].apart() {
			return n.Name
		}
	}
	return s.model.Nodes[0].Name
}

func (s *Server) entry() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.entryNode()
}

func clusterStatus(s *Server, _ *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	entry := s.entryNode()
	rows := []map[string]any{}
	members := s.members()
	single := len(members) == 1
	for i, n := range members {
		id := i + 1
		if single {
			id = 0
		}
		rows = append(rows, map[string]any{
			"type": "node", "id": "node/" + n.Name, "name": n.Name, "online": flag(!s.noticed(s.nodes[n.Name])), "nodeid": id,
			"ip": fmt.Sprintf("192.0.2.%d", i+1), "local": flag(n.Name == entry), "level": "",
		})
	}
	if single { // a node alone is no cluster
		return rows, nil
	}
	head := map[string]any{
		"type": "cluster", "id": "cluster", "name": s.model.Cluster, "nodes": len(members),
		"quorate": flag(s.quorate()), "version": len(members),
	}
	return append([]map[string]any{head}, rows...), nil
}
