// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/machost"
	"github.com/hyperfleet/hyperfleet/sim/scaleway"
	"github.com/hyperfleet/hyperfleet/test/loopback"
)

// linuxHostID is the ID of the Linux host.
const linuxHostID = "rack"

// site has all simulated hosts, and records the scripts that the operator runs on them.
type site struct {
	t     testing.TB
	cloud *scaleway.Simulator
	url   string
	port  int

	mu    sync.Mutex
	hosts map[string]*machost.Host // by the ID of the server, or linuxHostID
	// pushing has the number of running scripts that apply parts, by host.
	pushing map[string]int
	// maxPushing is the highest number of hosts in pushing since the last call of startRollout.
	maxPushing int
	// pushOrder has the hosts in the order in which the first part was applied to each since then, and
	// labels the labels of all parts.
	pushOrder  []string
	labels     map[string]bool
	maxAllowed int
	// canaryConfiguration is the configuration that the canary must have when the push to the second host
	// starts.
	canaryConfiguration string
}

func newSite(t testing.TB) *site {
	t.Helper()

	s := &site{
		t: t, hosts: map[string]*machost.Host{}, pushing: map[string]int{}, labels: map[string]bool{}, port: loopback.Port(t),
	}
	s.cloud = scaleway.New(scaleway.Options{
		DeliveryTime: time.Millisecond, RebootTime: time.Millisecond, ReinstallTime: time.Millisecond, Address: s.startServerHost, OnChange: s.stopServerHost,
	})

	server := httptest.NewServer(s.cloud)
	s.url = server.URL

	t.Cleanup(func() {
		server.Close()

		for _, host := range s.listHosts() {
			_ = host.Close()
		}

		for _, v := range s.cloud.Violations() {
			t.Errorf("a call violated Scaleway's contract: %+v", v)
		}
	})

	return s
}

// startServerHost starts the host of a server, at its own loopback address. The host accepts the SSH keys
// of the server, and sudo needs the server's password. The simulator calls this function with its lock
// held, one call at a time.
func (s *site) startServerHost(server scaleway.Server) string {
	s.mu.Lock()
	address := fmt.Sprintf("127.77.0.%d", len(s.hosts)+1)
	s.mu.Unlock()

	host, err := s.startHost(server.ID, machost.Options{
		Address: net.JoinHostPort(address, strconv.Itoa(s.port)), Password: server.Password,
		AuthorizedKeys: slices.Clone(server.SSHKeys),
	})
	if err != nil {
		s.t.Errorf("start the host of server %s: %v", server.Name, err)

		return "192.0.2.1"
	}

	if err := host.SetSudo(machost.SudoPassword); err != nil {
		s.t.Error(err)
	}

	return address
}

func (s *site) startHost(id string, options machost.Options) (*machost.Host, error) {
	options.Name = id
	options.Watch = func(run machost.Run) { s.watchScript(id, run) }

	host, err := machost.Start(context.Background(), options)
	if err != nil {
		return nil, err
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	s.hosts[id] = host

	return host, nil
}

// stopServerHost stops the host of a server that was reinstalled or deleted.
func (s *site) stopServerHost(server scaleway.Server, _ scaleway.Event) {
	s.mu.Lock()
	host := s.hosts[server.ID]
	delete(s.hosts, server.ID)
	s.mu.Unlock()

	if host != nil {
		_ = host.Close()
	}
}

// watchScript is called for every script on every host, when the script starts and when it ends.
func (s *site) watchScript(id string, run machost.Run) {
	// These scripts change nothing on the host.
	if run.Label == "" || run.Label == "probe" || strings.HasPrefix(run.Label, "macos-") || id == linuxHostID {
		return
	}

	if canary, expect := s.recordScript(id, run); canary != "" {
		if disk := s.readConfiguration(canary); disk != expect {
			s.t.Errorf("a push to %s started while the canary %s has %q, want %q", id, canary, disk, expect)
		}
	}
}

// recordScript counts a script. When the push to the second host starts, it returns the canary and the
// configuration that the canary must have.
func (s *site) recordScript(id string, run machost.Run) (string, string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if run.Ended {
		s.pushing[id]--
		if s.pushing[id] <= 0 {
			delete(s.pushing, id)
		}

		return "", ""
	}

	s.pushing[id]++
	s.labels[run.Label] = true

	if s.maxPushing = max(s.maxPushing, len(s.pushing)); s.maxAllowed > 0 && len(s.pushing) > s.maxAllowed {
		s.t.Errorf("pushes run on %d hosts, but maxUnavailable is %d", len(s.pushing), s.maxAllowed)
	}

	if slices.Contains(s.pushOrder, id) {
		return "", ""
	}

	s.pushOrder = append(s.pushOrder, id)
	if s.canaryConfiguration == "" || len(s.pushOrder) != 2 {
		return "", ""
	}

	return s.pushOrder[0], s.canaryConfiguration
}

// startRollout resets the counts. From now on scripts may apply parts to at most maxUnavailable hosts at a
// time, and to a second host only when the first has the configuration.
func (s *site) startRollout(to configuration) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.maxAllowed, s.canaryConfiguration = maxUnavailable, to.String()
	s.maxPushing, s.pushOrder, s.labels = 0, nil, map[string]bool{}
}

// summarizeRollout returns the highest number of hosts at a time, the hosts in their order, and the labels
// of the applied parts.
func (s *site) summarizeRollout() (int, []string, []string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	var labels []string
	for label := range s.labels {
		labels = append(labels, label)
	}

	slices.Sort(labels)

	return s.maxPushing, slices.Clone(s.pushOrder), labels
}

// countPushing returns the number of hosts to which parts are being applied.
func (s *site) countPushing() int {
	s.mu.Lock()
	defer s.mu.Unlock()

	return len(s.pushing)
}

func (s *site) getHost(id string) *machost.Host {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.hosts[id]
}

func (s *site) listHosts() map[string]*machost.Host {
	s.mu.Lock()
	defer s.mu.Unlock()

	return maps.Clone(s.hosts)
}

// listUnknownCalls returns calls of programs that no simulator knows.
func (s *site) listUnknownCalls() []string {
	var out []string
	for id, host := range s.listHosts() {
		for _, call := range host.UnknownCalls() {
			out = append(out, id+": "+call)
		}
	}

	return out
}

// readConfiguration returns the configuration on a host's disk.
func (s *site) readConfiguration(id string) string {
	if id == linuxHostID {
		return s.readVersions(id, "/usr/local/bin/hyperfleet-agent", "/etc/hyperfleet/egress.nft")
	}

	return s.readVersions(id, "/usr/local/bin/tart-kubelet", "/etc/pf.anchors/hyperfleet.egress")
}

// readVersions returns the configuration in the two files, in the format of configuration.String.
func (s *site) readVersions(id, kubelet, rules string) string {
	host := s.getHost(id)
	if host == nil {
		return "no host"
	}

	version := "?"

	for line := range strings.Lines(host.ReadFile(kubelet)) {
		if v, ok := strings.CutPrefix(line, "# version "); ok {
			version = strings.TrimSpace(v)
		}
	}

	network := "?"
	for _, field := range strings.FieldsFunc(host.ReadFile(rules), func(r rune) bool { return strings.ContainsRune(" \n\t{},;\"", r) }) {
		if strings.HasPrefix(field, "10.2") {
			network = field
		}
	}

	return "kubelet " + version + ", egress " + network
}
