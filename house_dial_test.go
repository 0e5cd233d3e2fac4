// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hyperfleet_test

import (
	"regexp"
	"testing"
)

// Who chooses the servers that a file connects to.
const (
	// administrators are those of the cluster, the operator's configuration or the machine's image.
	administrators = "an administrator"
	// limited means that users choose the server, and that bounds.EgressPolicy limits the addresses.
	limited = "users, within bounds.EgressPolicy"
	// shown means that users choose the server, and that the threat model lists this as a remaining risk.
	shown = "users, as docs/guides/threat-model.md says"
	// caller means that the file gets the transport or the server of its caller, whose file is in the list, too.
	caller = "the caller"
	// person means that a person runs the command, from a computer of their own.
	person = "the person who runs the command"
	// machine means that the program runs in a machine, which reaches what its network allows.
	machine = "a machine"
)

// dialing has the files of the product that open connections. If users choose the server, an attacker may choose a name
// with an address that only the operator can reach, or whose address changes after a check.
var dialing = map[string]string{
	"bridge/ignition/client.go":                       administrators, // HyperShift
	"cmd/hyperfleet/doctor/caches.go":                 person,
	"cmd/hyperfleet/doctor/logs.go":                   person,
	"cmd/hyperfleet/jobs/stored.go":                   person,
	"cmd/hyperfleet/operator/transports.go":           administrators,
	"cmd/hyperfleet/setup/check.go":                   person,
	"cmd/hyperfleet/shell/connect.go":                 person,
	"guest/cache.go":                                  machine,
	"guest/install.go":                                machine,
	"guest/report.go":                                 machine,
	"hosts/ssh/dial.go":                               shown,
	"hosts/ssh/trust.go":                              caller,
	"hypervisor/external/provider.go":                 administrators,
	"hypervisor/external/server/server.go":            administrators,
	"hypervisor/kubevirt/provider.go":                 administrators,
	"hypervisor/libvirt/dial.go":                      administrators,
	"hypervisor/proxmox/client.go":                    administrators,
	"identity/spire/connection.go":                    administrators,
	"kit/bounds/egress.go":                            limited,
	"kit/bounds/http.go":                              caller,
	"kit/credential/responses.go":                     shown, // kubeconfigs
	"kit/metrics/calls.go":                            caller,
	"networking/dns/connect.go":                       administrators,
	"networking/validate/ssh.go":                      shown,
	"platform/adapter/transport/kubernetes/client.go": administrators,
	"platform/broker/rabbitaccess.go":                 administrators,
	"platform/client/transport.go":                    administrators, // and the author of the task file
	"platform/server/jwks.go":                         administrators,
	"runners/logs.go":                                 caller,
	"workload/buildkite/client.go":                    caller,
	"workload/gitea/client.go":                        caller,
	"workload/github/transport.go":                    caller,
	"workload/gitlab/transport.go":                    caller,
}

// TestDialedServers checks that somebody has considered who chooses the server, for each file that opens connections.
func TestDialedServers(t *testing.T) {
	t.Parallel()

	dials := regexp.MustCompile(`bounds\.(NewTransport|SharedTransport)\(|net\.Dialer\{|http\.Transport\{|tls\.Dial|grpc\.NewClient\(|` +
		`net\.Dial\(|rest\.(HTTPClientFor|TransportFor)\(|ssh\.NewClientConn`)
	ofTests := regexp.MustCompile(`^(sim|test|hack|cmd/hyperfleet-demo|kit/(kubeproc|procrun))/`)
	found := map[string]bool{}

	for _, file := range goFiles(t) {
		if file.test() || ofTests.MatchString(file.path) || !dials.Match(file.source) {
			continue
		}

		found[file.path] = true

		if dialing[file.path] == "" {
			t.Errorf("%s opens connections: write into house_dial_test.go who chooses the servers. If users do, use bounds.EgressPolicy", file.path)
		}
	}

	for path := range dialing {
		if !found[path] {
			t.Errorf("%s opens no connections: remove it from house_dial_test.go", path)
		}
	}
}
