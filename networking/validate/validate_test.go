// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor/tenancy"
	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/networking/claimstatus"
	dnstest "github.com/hyperfleet/hyperfleet/test/dns"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/must"
)

const (
	domain       = "ci.example.com"
	backward     = "127.in-addr.arpa"
	waitTimeout  = time.Minute
	pollInterval = 20 * time.Millisecond
)

var env *kube.Env

func TestMain(m *testing.M) {
	kube.Main(m, &env, kube.ForArea("networking"))
}

// startSSHServer starts a real SSH server and returns its port.
func startSSHServer(t *testing.T) string {
	t.Helper()

	dir := t.TempDir()
	key := filepath.Join(dir, "key")

	if out, err := exec.CommandContext(t.Context(), "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key).CombinedOutput(); err != nil {
		t.Fatalf("make host key: %v: %s", err, out)
	}

	must.Do(t, os.MkdirAll("/run/sshd", 0o755))

	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must.Do(t, err)

	_, port, _ := net.SplitHostPort(listener.Addr().String())
	_ = listener.Close()

	config := filepath.Join(dir, "config")
	text := fmt.Sprintf("ListenAddress 127.0.0.1\nPort %s\nHostKey %s\nPidFile none\nUsePAM no\n", port, key)

	must.Do(t, os.WriteFile(config, []byte(text), 0o600))

	process, err := procrun.Start(context.Background(), procrun.Spec{
		Path: "/usr/sbin/sshd", Args: []string{"-D", "-e", "-f", config}, LogPath: filepath.Join(dir, "log"),
	})
	must.Do(t, err)

	t.Cleanup(func() { _ = process.Stop() })

	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()

	err = process.WaitReady(ctx, func(ctx context.Context) error { return checkSSHBanner(ctx, net.JoinHostPort("127.0.0.1", port)) })
	if err != nil {
		t.Fatalf("wait for sshd: %v\n%s", err, process.LogTail())
	}

	return port
}

func TestSSHBanner(t *testing.T) {
	t.Parallel()

	if err := checkSSHBanner(t.Context(), net.JoinHostPort("127.0.0.1", startSSHServer(t))); err != nil {
		t.Error(err)
	}

	for why, say := range map[string]string{
		"another server": "220 mail.example.com ESMTP\r\n", "a server that hangs up": "", "endless talk": strings.Repeat("a\n", maxGreeting),
	} {
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		must.Do(t, err)

		go func() {
			conn, err := listener.Accept()
			if err != nil {
				return
			}

			_, _ = conn.Write([]byte(say))
			_ = conn.Close()
		}()

		if err := checkSSHBanner(t.Context(), listener.Addr().String()); !errors.Is(err, errNoBanner) {
			t.Errorf("%s: %v", why, err)
		}

		_ = listener.Close()

		if err := checkSSHBanner(t.Context(), listener.Addr().String()); err == nil || errors.Is(err, errNoBanner) {
			t.Errorf("no server: %v", err)
		}
	}
}

// The check of a server that accepts a connection and sends nothing ends at the timeout.
func TestSSHSilence(t *testing.T) {
	t.Parallel()

	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must.Do(t, err)
	defer func() { _ = listener.Close() }()

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()

	if err := checkSSHBanner(ctx, listener.Addr().String()); err == nil || !strings.Contains(err.Error(), "sends nothing") {
		t.Errorf("banner() = %v", err)
	}
}

func TestPing(t *testing.T) {
	t.Parallel()

	for _, text := range []string{"127.0.0.1", "::ffff:127.0.0.1", "::1"} {
		err := ping(t.Context(), netip.MustParseAddr(text))
		if text == "::1" && err != nil && !errors.Is(err, errPingNotPermitted) {
			t.Logf("this machine has no IPv6 on loopback: %v", err)

			continue
		}

		if err != nil {
			t.Errorf("ping %s: %v", text, err)
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	if err := ping(ctx, netip.MustParseAddr("127.0.0.1")); err == nil {
		t.Error("a reply after the timeout counts")
	}

	test := newNetworkChecks(&v1alpha1.NetworkValidation{PingTest: true}, ports{})[0]
	if got := test.runWithTimeout(ctx, target{addr: netip.MustParseAddr("127.0.0.1")}); got.reason != ReasonPingFailed || got.didNotRun {
		t.Errorf("the check of a machine that does not reply is %+v", got)
	}
}

func TestLookUps(t *testing.T) {
	t.Parallel()

	server := dnstest.StartBIND(t, dnstest.Config{Zones: []string{domain, backward}})
	server.AddRecords(t, domain, "vm1."+domain+". 60 A 127.0.0.1", "alias."+domain+". 60 CNAME vm1."+domain+".", "vm6."+domain+". 60 AAAA ::1")
	server.AddRecords(t, backward, "1.0.0.127.in-addr.arpa. 60 PTR VM1."+domain+".")

	_, port, _ := net.SplitHostPort(server.Addr)
	here, there := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
	servers := []string{"127.0.0.1"}

	for _, row := range []struct {
		why    string
		got    finding
		reason string
	}{
		{"name and address fit", checkForward(t.Context(), servers, port, domain, target{"vm1." + domain, here}), ""},
		{"IPv6", checkForward(t.Context(), servers, port, domain, target{"vm6." + domain, netip.IPv6Loopback()}), ""},
		{"by way of an alias", checkForward(t.Context(), servers, port, "", target{"alias." + domain, here}), ""},
		{"missing name", checkForward(t.Context(), servers, port, domain, target{"vm2." + domain, here}), ReasonForwardFailed},
		{"another address", checkForward(t.Context(), servers, port, domain, target{"vm1." + domain, there}), ReasonForwardMismatch},
		{"another family", checkForward(t.Context(), servers, port, domain, target{"vm1." + domain, netip.IPv6Loopback()}), ReasonForwardFailed},
		{"another domain", checkForward(t.Context(), servers, port, "other.example", target{"vm1." + domain, here}), ReasonWrongDomain},
		{"a zone that is refused", checkForward(t.Context(), servers, port, "", target{"vm1.other.example", here}), ReasonForwardFailed},
		{"no server", checkForward(t.Context(), servers, "1", domain, target{"vm1." + domain, here}), ReasonForwardFailed},
		{"address and name fit", checkReverse(t.Context(), servers, port, target{"vm1." + domain, here}), ""},
		{"another name", checkReverse(t.Context(), servers, port, target{"vm2." + domain, here}), ReasonReverseMismatch},
		{"no name", checkReverse(t.Context(), servers, port, target{"vm1." + domain, there}), ReasonReverseFailed},
	} {
		if row.got.reason != row.reason {
			t.Errorf("%s: %+v, want reason %q", row.why, row.got, row.reason)
		}
	}

	// The second server responds if the first does not.
	two := &resolver{servers: []string{"127.0.0.1:1", server.Addr}}
	if got, err := two.lookupAddresses(t.Context(), "vm1."+domain, here); err != nil || len(got) != 1 {
		t.Errorf("two servers: %v, %v", got, err)
	}
}

func TestVerdict(t *testing.T) {
	t.Parallel()

	ok := finding{check: "forward"}
	failed := finding{check: "ssh", reason: ReasonSSHFailed, message: "refused"}
	unknown := finding{check: "ping", reason: ReasonPingNotPermitted, message: "may not", didNotRun: true}

	for _, row := range []struct {
		why      string
		findings []finding
		status   metav1.ConditionStatus
		reason   string
	}{
		{"all passed", []finding{ok}, metav1.ConditionTrue, ReasonPassed},
		{"one failed", []finding{ok, failed}, metav1.ConditionFalse, ReasonSSHFailed},
		{"one could not run", []finding{unknown, ok}, metav1.ConditionUnknown, ReasonPingNotPermitted},
		{"a failure takes precedence over an unknown result", []finding{unknown, failed}, metav1.ConditionFalse, ReasonSSHFailed},
	} {
		status, reason, message := summarize(row.findings, &subject{fqdn: "vm1." + domain, addrs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}})
		if status != row.status || reason != row.reason {
			t.Errorf("%s: %s %s: %s", row.why, status, reason, message)
		}

		for _, f := range row.findings {
			if !strings.Contains(message, f.message) {
				t.Errorf("%s: %q is not in %q", row.why, f.message, message)
			}
		}
	}
}

func TestSchedule(t *testing.T) {
	t.Parallel()

	now := time.Unix(1_800_000_000, 0)
	bad := []finding{{reason: ReasonPingFailed}}
	good := []finding{{}}

	within := func(why string, got time.Time, want time.Duration) {
		t.Helper()

		if got.Before(now.Add(want*9/10)) || got.After(now.Add(want*11/10)) {
			t.Errorf("%s: after %s, want about %s", why, got.Sub(now), want)
		}
	}

	if first := newProgress(schedule{onReady: true, interval: time.Hour}, now); !first.isDue(now) {
		t.Error("no check is due on Ready")
	}

	within("only in an interval", newProgress(schedule{interval: time.Hour}, now).next, time.Hour)

	once := newProgress(schedule{onReady: true}, now).withFindings(schedule{onReady: true}, now, good)
	if once.isDue(now.Add(1000 * time.Hour)) {
		t.Error("a check is due again without an interval")
	}

	r := schedule{onReady: true, interval: time.Minute}
	within("passed", progress{}.withFindings(r, now, good).next, time.Minute)

	failing := progress{}
	for _, want := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second, time.Minute, time.Minute} {
		failing = failing.withFindings(r, now, bad)
		within(fmt.Sprintf("failed %d times", failing.failures), failing.next, want)
	}

	for range 100 {
		failing = failing.withFindings(schedule{onReady: true}, now, bad)
	}

	within("failed for long", failing.next, maxRetryDelay)

	if passed := failing.withFindings(r, now, good); passed.failures != 0 {
		t.Error("failures are not reset after a success")
	}
}

// fixture runs the controller against a real name server and a real SSH server.
type fixture struct {
	*dnstest.Server

	t         *testing.T
	namespace string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()

	s := &fixture{t: t, Server: dnstest.StartBIND(t, dnstest.Config{Zones: []string{domain, backward}}), namespace: env.Namespace(t)}
	_, port, _ := net.SplitHostPort(s.Addr)

	env.StartManager(t, "", func(_ context.Context, mgr ctrl.Manager) error {
		return SetupWithManager(mgr, Options{DNSPort: port, SSHPort: startSSHServer(t)})
	})

	return s
}

func (s *fixture) must(err error) {
	s.t.Helper()

	must.Do(s.t, err)
}

// newDNSConfig enables forward and reverse look-ups at a short interval.
func newDNSConfig() *v1alpha1.HypervisorDNS {
	return &v1alpha1.HypervisorDNS{
		Domain: domain, Servers: []string{"127.0.0.1"},
		Validation: &v1alpha1.DNSValidation{
			Enabled: true, ValidateOnReady: true, ValidateReverse: true,
			ValidateInterval: &metav1.Duration{Duration: 300 * time.Millisecond},
		},
	}
}

func (s *fixture) createCluster(dns *v1alpha1.HypervisorDNS, network *v1alpha1.NetworkValidation) *v1alpha1.HypervisorCluster {
	s.t.Helper()

	ref := &v1alpha1.SecretValueSource{SecretKeyRef: v1alpha1.SecretKeySelector{Name: "pve", Key: "token"}}
	cluster := &v1alpha1.HypervisorCluster{
		ObjectMeta: metav1.ObjectMeta{Name: s.namespace},
		Spec: v1alpha1.HypervisorClusterSpec{
			Provider: "proxmox", Endpoint: "https://pve.example.com:8006/api2/json",
			Credentials: v1alpha1.HypervisorCredentials{TokenID: ref, TokenSecret: ref}, DNS: dns,
			Network: &v1alpha1.HypervisorNetwork{Validation: network},
		},
	}
	s.must(env.Client.Create(s.t.Context(), cluster))

	return cluster
}

// enableRegistration enables the registration of machines in DNS.
func (s *fixture) enableRegistration(cluster *v1alpha1.HypervisorCluster) {
	s.t.Helper()

	ref := v1alpha1.SecretValueSource{SecretKeyRef: v1alpha1.SecretKeySelector{Name: "dns", Key: "key"}}
	cluster.Spec.DNS.RegisterVMs = true
	cluster.Spec.DNS.DNSProvider = &v1alpha1.DNSProvider{Type: "cloudflare", Credentials: map[string]v1alpha1.SecretValueSource{"apiToken": ref}}
	s.must(env.Client.Update(s.t.Context(), cluster))
}

func (s *fixture) createClaim() *v1alpha1.MachineClaim {
	s.t.Helper()

	claim := &v1alpha1.MachineClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "vm1", Namespace: s.namespace},
		Spec: v1alpha1.MachineClaimSpec{
			TemplateRef: v1alpha1.LocalObjectReference{Name: "linux"},
			WorkloadConfig: v1alpha1.Workload{Type: "generic", Config: &v1alpha1.WorkloadConfig{
				Generic: &v1alpha1.GenericConfig{Source: "nightly", Command: []string{"/usr/bin/make"}},
			}},
		},
	}
	s.must(env.Client.Create(s.t.Context(), claim))

	claim.Status = v1alpha1.MachineClaimStatus{
		Phase: v1alpha1.MachineClaimReady, VMRef: &v1alpha1.VMReference{HypervisorCluster: s.namespace, VMID: "100"},
		NetworkInfo: &v1alpha1.NetworkInfo{Hostname: "vm1", FQDN: "vm1." + domain, IPAddress: "127.0.0.1"},
	}
	s.must(env.Client.Status().Update(s.t.Context(), claim))

	return claim
}

func (s *fixture) waitForCondition(machine claimstatus.Machine, status metav1.ConditionStatus, reason string) metav1.Condition {
	s.t.Helper()

	deadline := time.Now().Add(waitTimeout)

	for {
		s.must(env.Client.Get(s.t.Context(), client.ObjectKeyFromObject(machine), machine))

		got := meta.FindStatusCondition(*machine.StatusConditions(), v1alpha1.ConditionNetworkValidated)
		if got == nil {
			got = &metav1.Condition{}
		}

		if got.Status == status && got.Reason == reason {
			return *got
		}

		if time.Now().After(deadline) {
			s.t.Fatalf("condition is %s %s: %s, want %s %s", got.Status, got.Reason, got.Message, status, reason)
		}

		time.Sleep(pollInterval)
	}
}

// A machine is checked until the checks pass, and at the interval after that.
func TestAMachineIsValidated(t *testing.T) {
	s := newFixture(t)
	cluster := s.createCluster(newDNSConfig(), &v1alpha1.NetworkValidation{Enabled: true, PingTest: true, SSHTest: true})
	claim := s.createClaim()

	s.waitForCondition(claim, metav1.ConditionFalse, ReasonForwardFailed)
	s.AddRecords(t, domain, "vm1."+domain+". 60 A 127.0.0.9")
	s.waitForCondition(claim, metav1.ConditionFalse, ReasonForwardMismatch)
	s.AddRecords(t, domain, "vm1."+domain+". 60 A 127.0.0.1")
	s.waitForCondition(claim, metav1.ConditionFalse, ReasonReverseFailed)

	if claim.Status.Phase != v1alpha1.MachineClaimReady || !claim.DeletionTimestamp.IsZero() {
		t.Errorf("after failed checks: phase %s, deleted at %s", claim.Status.Phase, claim.DeletionTimestamp)
	}

	s.AddRecords(t, backward, "1.0.0.127.in-addr.arpa. 60 PTR vm1."+domain+".")

	if got := s.waitForCondition(claim, metav1.ConditionTrue, ReasonPassed); !strings.Contains(got.Message, "forward, reverse, ping, ssh") {
		t.Errorf("message after a passed check: %s", got.Message)
	}

	// The check at the interval finds a later failure.
	s.RemoveRecords(t, domain, "vm1."+domain+". 0 A 127.0.0.1")
	s.waitForCondition(claim, metav1.ConditionFalse, ReasonForwardMismatch)

	// With registration, look-ups wait for the records.
	s.enableRegistration(cluster)
	s.waitForCondition(claim, metav1.ConditionUnknown, "WaitingForRegistration")

	// If the validation is disabled, the machine has no condition.
	cluster.Spec.DNS, cluster.Spec.Network = nil, nil
	s.must(env.Client.Update(t.Context(), cluster))
	s.waitForCondition(claim, "", "")
}

// createKubevirtMachine creates a machine of a node pool with the status that its controller writes.
func (s *fixture) createKubevirtMachine(addresses ...string) *infrav1.KubevirtMachine {
	s.t.Helper()

	attach := false
	pool := &infrav1.KubevirtNodePool{
		ObjectMeta: metav1.ObjectMeta{Name: "nodes", Namespace: s.namespace},
		Spec: infrav1.KubevirtNodePoolSpec{
			AttachDefaultNetwork: &attach, AdditionalNetworks: []infrav1.KubevirtNetwork{{Name: "machines"}},
			DNS: &infrav1.KubevirtNodePoolDNS{
				HypervisorClusterRef: infrav1.LocalObjectReference{Name: s.namespace}, Domain: "nodes." + domain,
			},
			RootVolume: infrav1.KubevirtRootVolume{DiskImage: infrav1.KubevirtDiskImage{ContainerDiskImage: "fedora:42"}},
			Compute:    &infrav1.KubevirtCompute{Cores: 1, Memory: resource.MustParse("1Gi")},
		},
	}
	s.must(env.Client.Create(s.t.Context(), pool))

	machine := &infrav1.KubevirtMachine{
		ObjectMeta: metav1.ObjectMeta{Name: "node1", Namespace: s.namespace, Labels: map[string]string{infrav1.LabelNodePool: "nodes"}},
		Spec: infrav1.KubevirtMachineSpec{
			VirtualMachineTemplate: runtime.RawExtension{Raw: []byte(`{"spec":{}}`)},
			BootstrapNetworkConfig: &infrav1.VirtualMachineBootstrapNetworkConfig{
				NetworkName: "machines", Subnets: []infrav1.AddressRange{"127.0.0.0/8"},
			},
		},
	}
	s.must(env.Client.Create(s.t.Context(), machine))

	machine.Status = infrav1.KubevirtMachineStatus{
		Phase: infrav1.KubevirtMachineRunning, Ready: true,
		AllocatedBootstrapAddresses: map[string][]string{"eno101": addresses},
		Conditions: []metav1.Condition{{
			Type: step.Ready, Status: metav1.ConditionTrue, Reason: "Done", LastTransitionTime: metav1.Now(),
		}},
	}
	s.must(env.Client.Status().Update(s.t.Context(), machine))

	return machine
}

// A KubevirtMachine is checked with the settings of its pool's cluster, at all of its addresses, and in its
// pool's domain.
func TestAKubevirtMachineIsValidated(t *testing.T) {
	s := newFixture(t)
	cluster := s.createCluster(newDNSConfig(), &v1alpha1.NetworkValidation{Enabled: true, PingTest: true})
	machine := s.createKubevirtMachine("127.0.0.1/8", "127.0.0.2/8")
	name := "node1.nodes." + domain

	s.waitForCondition(machine, metav1.ConditionFalse, ReasonForwardFailed)
	s.AddRecords(t, domain, name+". 60 A 127.0.0.1")
	s.AddRecords(t, backward, "1.0.0.127.in-addr.arpa. 60 PTR "+name+".", "2.0.0.127.in-addr.arpa. 60 PTR "+name+".")

	if got := s.waitForCondition(machine, metav1.ConditionFalse, ReasonForwardMismatch); !strings.Contains(got.Message, "the machine has the address 127.0.0.2") {
		t.Errorf("the message does not name the address: %s", got.Message)
	}

	s.AddRecords(t, domain, name+". 60 A 127.0.0.2")

	got := s.waitForCondition(machine, metav1.ConditionTrue, ReasonPassed)
	for _, want := range []string{name + " (127.0.0.1, 127.0.0.2) passed", "forward 127.0.0.1", "reverse 127.0.0.2", "ping 127.0.0.2"} {
		if !strings.Contains(got.Message, want) {
			t.Errorf("%q is not in: %s", want, got.Message)
		}
	}

	// With registration, look-ups wait for the records.
	s.enableRegistration(cluster)
	s.waitForCondition(machine, metav1.ConditionUnknown, "WaitingForRegistration")

	// If the pool disables DNS, the machine has no condition.
	pool := &infrav1.KubevirtNodePool{}
	s.must(env.Client.Get(t.Context(), client.ObjectKey{Namespace: s.namespace, Name: "nodes"}, pool))
	pool.Spec.DNS = nil
	s.must(env.Client.Update(t.Context(), pool))
	s.waitForCondition(machine, "", "")
}

// The operator sends no look-up and no test for a machine that the cluster does not allow for its
// namespace, whatever address and name its status has.
func TestForbiddenMachinesAreNotChecked(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must.Do(t, err)

	var calls atomic.Int64

	t.Cleanup(func() { _ = listener.Close() })

	go func() {
		for conn, err := listener.Accept(); err == nil; conn, err = listener.Accept() {
			calls.Add(1)

			_, _ = conn.Write([]byte("SSH-2.0-x\r\n"))
			_ = conn.Close()
		}
	}()

	_, port, _ := net.SplitHostPort(listener.Addr().String())
	s := &fixture{t: t, namespace: env.Namespace(t)}

	env.StartManager(t, "", func(_ context.Context, mgr ctrl.Manager) error { return SetupWithManager(mgr, Options{SSHPort: port}) })

	cluster := s.createCluster(nil, &v1alpha1.NetworkValidation{Enabled: true, SSHTest: true})
	limit := func(entry v1alpha1.NamespaceAccess) {
		cluster.Spec.AllowedNamespaces = []v1alpha1.NamespaceAccess{entry}
		s.must(env.Client.Update(t.Context(), cluster))
	}

	limit(v1alpha1.NamespaceAccess{Names: []string{"others"}})

	claim := s.createClaim()
	s.waitForCondition(claim, metav1.ConditionUnknown, tenancy.ReasonNamespace)
	limit(v1alpha1.NamespaceAccess{Selector: &v1alpha1.NamespaceSelector{}, Domains: []string{"team-a." + domain}})

	if got := s.waitForCondition(claim, metav1.ConditionUnknown, tenancy.ReasonDomain); !strings.Contains(got.Message, "only names in team-a."+domain+":") {
		t.Errorf("the message does not list the allowed values: %s", got.Message)
	}

	if n := calls.Load(); n > 0 {
		t.Errorf("a server was called %d times", n)
	}

	limit(v1alpha1.NamespaceAccess{Names: []string{s.namespace}, Domains: []string{domain}})
	s.waitForCondition(claim, metav1.ConditionTrue, ReasonPassed)
}
