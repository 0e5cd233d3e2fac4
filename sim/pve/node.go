// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"net/http"
	"slices"
	"strings"
	"time"
)

// Outage defines how long a cluster takes to detect the fault of a node, and how long calls for the
// node take to fail. Zero means no delay.
type Outage struct {
	// Offline is the time until the other nodes report a hung or disconnected node as offline. It is
	// up to 20 s on a real cluster.
	Offline time.Duration `json:"offline"`
	// Forget is the time until the last report of such a node expires. Its VMs then have neither
	// name nor status. It is 300 s on a real cluster.
	Forget time.Duration `json:"forget"`
	// Timeout is the time after which a call for such a node fails. It is 30 s on a real cluster.
	Timeout time.Duration `json:"timeout"`
	// Unroutable is the time from which calls for a disconnected node fail with "No route to host".
	// Such a call fails after the time NoRoute, which is 8 s on a real cluster.
	Unroutable time.Duration `json:"unroutable"`
	NoRoute    time.Duration `json:"noRoute"`
}

func defaultOutage() Outage {
	return Outage{
		Offline: 20 * time.Second, Forget: 5 * time.Minute, Timeout: 30 * time.Second,
		Unroutable: time.Minute, NoRoute: 8 * time.Second,
	}
}

// node is a node of the cluster.
type node struct {
	Node

	started   time.Time
	fault     FaultKind // one of nodeFaults, or empty
	faultTime time.Time
}

func nodeFaults() []FaultKind {
	return []FaultKind{FaultNodeHung, FaultNodeCut, FaultNodeLost, FaultNoReports}
}

// isIsolated returns true if the other nodes receive nothing from the node.
func (n *node) isIsolated() bool { return n.fault != "" && n.fault != FaultNoReports }

// listMembers returns the nodes that are members of the cluster. The caller holds s.mu.
func (s *Server) listMembers() []Node {
	return slices.DeleteFunc(slices.Clone(s.model.Nodes), func(n Node) bool { return s.nodes[n.Name].fault == FaultNodeLost })
}

// deleteNode deletes the VMs of a node that is removed from the cluster, and all volumes on its own
// storages. The caller holds s.mu.
func (s *Server) deleteNode(name string) {
	for _, m := range s.vms {
		if m.node == name {
			s.powerOff(m)
			s.deleteVMLocked(m)
		}
	}
	for _, st := range s.stores {
		if st.key.node == name {
			clear(st.vols)
		}
	}
}

// SetNodeDown disconnects a node from the network or connects it again; see [FaultNodeCut].
func (s *Server) SetNodeDown(name string, isDown bool) {
	kind := FaultKind("")
	if isDown {
		kind = FaultNodeCut
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setNodeFault(name, kind)
}

// setNodeFault sets the fault of a node. An empty kind ends the fault. A lost node stays lost. The
// caller holds s.mu.
func (s *Server) setNodeFault(name string, kind FaultKind) {
	n := s.nodes[name]
	if n == nil || n.fault == kind || n.fault == FaultNodeLost {
		return
	}
	n.fault, n.faultTime = kind, s.clk.Now()
	if kind == FaultNodeLost {
		s.deleteNode(name)
	}
}

// isOffline returns true if the other nodes report the node as offline. The caller holds s.mu.
func (s *Server) isOffline(n *node) bool {
	return n.isIsolated() && s.clk.Since(n.faultTime) >= s.model.Outage.Offline
}

// lastReport returns the time of a node's last valid report at or before reportTime, and false if
// the node has none. The caller holds s.mu.
func (s *Server) lastReport(name string, reportTime time.Time) (time.Time, bool) {
	n := s.nodes[name]
	switch {
	case n.fault == "":
		return reportTime, true
	case n.fault == FaultNoReports, s.clk.Since(n.faultTime) >= s.model.Outage.Forget:
		return time.Time{}, false
	case n.faultTime.Before(reportTime):
		return n.faultTime, true
	default:
		return reportTime, true
	}
}

// failUnreachable waits and returns an error if the node of a call is hung, disconnected or lost.
// The entry node handles the calls for other nodes.
func (s *Server) failUnreachable(c *call, n *node) error {
	s.mu.Lock()
	kind, since := n.fault, n.faultTime
	s.mu.Unlock()
	status, reason, wait := statusProxyError, "Connection timed out", s.model.Outage.Timeout
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
		return errClientGone
	}
	return &apiError{status: status, reason: reason, form: bodyEmpty}
}

// checkQuorum refuses calls that write to the cluster file system while the entry node has no
// quorum.
func (s *Server) checkQuorum(c *call) error {
	s.mu.Lock()
	quorate := s.isQuorate()
	s.mu.Unlock()
	path := strings.Join(c.route.pattern, "/")
	if quorate || !isWrite(c.method) || path == "access/ticket" || strings.Contains(path, "/token/") {
		return nil
	}
	if file := findLockedFile(path); file != "" {
		s.sleep(c.ctx, cfsLockWait)
		return dief("%scfs-lock '%s' error: no quorum!", describeLockAction(c.method, path), file)
	}
	switch last := c.route.pattern[len(c.route.pattern)-1]; last {
	case "clone", "start", "qemu", "migrate":
		return dief("cluster not ready - no quorum?")
	default:
		if strings.HasPrefix(path, "cluster/ha/") {
			return dief("cluster not ready - no quorum?")
		}
		return nil
	}
}

// cfsLockWait is how long a call waits for a lock of the cluster file system without a quorum.
const cfsLockWait = 10 * time.Second

// findLockedFile returns the file of the cluster file system that the calls below a path change under a lock.
func findLockedFile(path string) string {
	switch {
	case strings.HasPrefix(path, "access/"), strings.HasPrefix(path, "pools"):
		return "file-user_cfg"
	case path == "cluster/options":
		return "file-datacenter_cfg"
	case strings.HasPrefix(path, "storage"):
		return "file-storage_cfg"
	default:
		return ""
	}
}

// describeLockAction returns what the error of a change under a lock says about the call.
func describeLockAction(method, path string) string {
	verb := map[string]string{http.MethodPost: "create", http.MethodPut: "update", http.MethodDelete: "delete"}[method]
	for _, object := range []struct{ prefix, name string }{
		{"access/users", "user"}, {"access/groups", "group"}, {"access/roles", "role"},
		{"pools", "pool"}, {"storage", "storage"},
	} {
		switch {
		case !strings.HasPrefix(path, object.prefix):
		case object.name == "pool" && verb == "update":
			return "update pools failed: "
		default:
			return verb + " " + object.name + " failed: "
		}
	}
	if path == "access/acl" {
		return "ACL update failed: "
	}
	return ""
}

// checkWritable returns an error if the configuration of a VM cannot be written, because the entry node has no quorum.
// The caller holds s.mu.
func (s *Server) checkWritable(c *call) error {
	if s.isQuorate() {
		return nil
	}
	pid := s.nextPID
	if c.task != nil {
		pid = c.task.pid
	}
	return dief("unable to open file '/etc/pve/nodes/%s/qemu-server/%d.conf.tmp.%d' - Permission denied", c.node, c.vmid, pid)
}

// isQuorate returns true if more than half of the members are online. The caller holds s.mu.
func (s *Server) isQuorate() bool {
	online, members := 0, s.listMembers()
	for _, n := range members {
		online += boolToInt(!s.isOffline(s.nodes[n.Name]))
	}
	return online*2 > len(members)
}

// newNodeRow returns a node's row in a listing. The load is visible only with Sys.Audit. The caller
// holds s.mu.
func (s *Server) newNodeRow(n *node, caller identity) map[string]any {
	row := map[string]any{"node": n.Name, "id": "node/" + n.Name, "type": "node", "status": "unknown"}
	canSee := s.requireLocked(caller, "/nodes/"+n.Name, "Sys.Audit") == nil
	if reportTime, ok := s.lastReport(n.Name, s.clk.Now()); ok {
		row["level"] = ""
		if canSee {
			row["maxcpu"], row["maxmem"], row["maxdisk"] = n.CPUs, n.Memory, nodeDisk
		}
		if !s.isOffline(n) {
			row["status"] = "online"
			if canSee {
				row["cpu"], row["mem"], row["disk"] = 0.01, s.usedMemory(n.Name), nodeDisk/2 //nolint:mnd // an arbitrary load
				row["uptime"] = int64(reportTime.Sub(n.started).Seconds())
			}
		}
	}
	if s.isOffline(n) {
		row["status"] = "offline"
	}
	return row
}

// nodeDisk is the size of a node's root file system.
const nodeDisk = 100 * gib

// findEntryNode returns the node that handles the calls: the first node that is not isolated. The
// caller holds s.mu.
func (s *Server) findEntryNode() string {
	for _, n := range s.model.Nodes {
		if !s.nodes[n.Name].isIsolated() {
			return n.Name
		}
	}
	return s.model.Nodes[0].Name
}

func (s *Server) getEntryNode() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.findEntryNode()
}

func getClusterStatus(s *Server, _ *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	entry := s.findEntryNode()
	rows := []map[string]any{}
	members := s.listMembers()
	isSingle := len(members) == 1
	for i, n := range members {
		id := i + 1
		if isSingle {
			id = 0
		}
		rows = append(rows, map[string]any{
			"type": "node", "id": "node/" + n.Name, "name": n.Name, "online": boolToInt(!s.isOffline(s.nodes[n.Name])), "nodeid": id,
			"ip": s.nodeAddress(n.Name), "local": boolToInt(n.Name == entry), "level": "",
		})
	}
	if isSingle { // a single node is not a cluster
		return rows, nil
	}
	head := map[string]any{
		"type": "cluster", "id": "cluster", "name": s.model.Cluster, "nodes": len(members),
		"quorate": boolToInt(s.isQuorate()), "version": 1,
	}
	return append([]map[string]any{head}, rows...), nil
}
