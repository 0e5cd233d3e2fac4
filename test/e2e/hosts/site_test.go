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

// rack is the id of the Linux host.
const rack = "rack"

// site has all hosts, and watches them from their own side.
type site struct {
	t     testing.TB
	cloud *scaleway.Simulator
	url   string
	port  int

	mu    sync.Mutex
	hosts map[string]*machost.Host // by the id of the server, and "rack"
	// pushing are the hosts at which parts are being applied, with how many scripts.
	pushing map[string]int
	// most hosts were pushed to at a time since the last call of rollout.
	most int
	// order are the hosts in the order in which the first part was applied to each since
	// then, and labels what was.
	order  []string
	labels map[string]bool
	bound  int
	// expect is what the canary has to have on its disk when the next host's turn comes.
	expect string
}

func newSite(t testing.TB) *site {
	t.Helper()

	s := &site{
		t: t, hosts: map[string]*machost.Host{}, pushing: map[string]int{}, labels: map[string]bool{}, port: loopback.Port(t),
	}
	s.cloud = scaleway.New(scaleway.Options{
		DeliveryTime: time.Millisecond, RebootTime: time.Millisecond, ReinstallTime: time.Millisecond, Address: s.deliver, OnChange: s.changed,
	})

	server := httptest.NewServer(s.cloud)
	s.url = server.URL

	t.Cleanup(func() {
		server.Close()

		for _, host := range s.all() {
			_ = host.Close()
		}

		for _, v := range s.cloud.Violations() {
			t.Errorf("Scaleway's contract was broken: %+v", v)
		}
	})

	return s
}

// deliver starts the host of a server, with an address of loopback of its own. The host
// lets in whom the server was installed for, and asks for its password before it lets
// anybody be root. Called with the cloud's lock held, one at a time.
func (s *site) deliver(server scaleway.Server) string {
	s.mu.Lock()
	address := fmt.Sprintf("127.77.0.%d", len(s.hosts)+1)
	s.mu.Unlock()

	host, err := s.start(server.ID, machost.Options{
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

func (s *site) start(id string, options machost.Options) (*machost.Host, error) {
	options.Name = id
	options.Watch = func(run machost.Run) { s.watch(id, run) }

	host, err := machost.Start(context.Background(), options)
	if err != nil {
		return nil, err
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	s.hosts[id] = host

	return host, nil
}

// changed takes away the host of a server that was wiped or is gone.
func (s *site) changed(server scaleway.Server, _ scaleway.Event) {
	s.mu.Lock()
	host := s.hosts[server.ID]
	delete(s.hosts, server.ID)
	s.mu.Unlock()

	if host != nil {
		_ = host.Close()
	}
}

// watch hears of every script at every Mac, when it starts and when it has ended.
func (s *site) watch(id string, run machost.Run) {
	// What asks a host pushes nothing to it.
	if run.Label == "" || run.Label == "probe" || strings.HasPrefix(run.Label, "macos-") || id == rack {
		return
	}

	if canary, expect := s.note(id, run); canary != "" {
		if disk := s.disk(canary); disk != expect {
			s.t.Errorf("%s is pushed to, and the canary %s has %q and not %q", id, canary, disk, expect)
		}
	}
}

// note counts a script. It gives the canary when the second host's turn has come.
func (s *site) note(id string, run machost.Run) (string, string) {
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

	if s.most = max(s.most, len(s.pushing)); s.bound > 0 && len(s.pushing) > s.bound {
		s.t.Errorf("%d hosts are in the middle of a push, and maxUnavailable is %d", len(s.pushing), s.bound)
	}

	if slices.Contains(s.order, id) {
		return "", ""
	}

	s.order = append(s.order, id)
	if s.expect == "" || len(s.order) != 2 {
		return "", ""
	}

	return s.order[0], s.expect
}

// rollout begins another look: from now on no more than maxUnavailable hosts may be pushed
// to at a time, and no second one before the first has the configuration.
func (s *site) rollout(to configuration) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.bound, s.expect = maxUnavailable, to.String()
	s.most, s.order, s.labels = 0, nil, map[string]bool{}
}

// seen gives what was seen since: the most hosts at a time, the hosts in their order, and
// the labels of what was applied.
func (s *site) seen() (int, []string, []string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	var labels []string
	for label := range s.labels {
		labels = append(labels, label)
	}

	slices.Sort(labels)

	return s.most, slices.Clone(s.order), labels
}

// underWay says at how many hosts parts are being applied.
func (s *site) underWay() int {
	s.mu.Lock()
	defer s.mu.Unlock()

	return len(s.pushing)
}

func (s *site) host(id string) *machost.Host {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.hosts[id]
}

func (s *site) all() map[string]*machost.Host {
	s.mu.Lock()
	defer s.mu.Unlock()

	return maps.Clone(s.hosts)
}

// unknown gives calls of programs that no simulator knows.
func (s *site) unknown() []string {
	var out []string
	for id, host := range s.all() {
		for _, call := range host.UnknownCalls() {
			out = append(out, id+": "+call)
		}
	}

	return out
}

// disk says which configuration is on a host's disk.
func (s *site) disk(id string) string {
	if id == rack {
		return s.has(id, "/usr/local/bin/hyperfleet-agent", "/etc/hyperfleet/egress.nft")
	}

	return s.has(id, "/usr/local/bin/tart-kubelet", "/etc/pf.anchors/hyperfleet.egress")
}

// has says which configuration is on a host's disk, in the form of config.String.
func (s *site) has(id, kubelet, rules string) string {
	host := s.host(id)
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
