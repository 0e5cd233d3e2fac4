// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor/tenancy"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	dnstest "github.com/hyperfleet/hyperfleet/test/dns"
)

const (
	waitTimeout  = time.Minute
	pollInterval = 20 * time.Millisecond
)

// fixture is a fixture with a cluster and its own DNS server.
type fixture struct {
	*dnstest.Server

	t         *testing.T
	name      string
	namespace string
	cluster   *v1alpha1.HypervisorCluster
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	runControllers(t)

	s := &fixture{t: t, Server: dnstest.StartBIND(t, newTestConfig()), namespace: env.Namespace(t)}
	s.name = s.namespace
	s.createSecret(dnstest.KeyName, s.Key)

	ref := func(key string) v1alpha1.SecretValueSource {
		return v1alpha1.SecretValueSource{SecretKeyRef: v1alpha1.SecretKeySelector{Name: s.name, Key: key}}
	}
	s.cluster = &v1alpha1.HypervisorCluster{
		ObjectMeta: metav1.ObjectMeta{Name: s.name},
		Spec: v1alpha1.HypervisorClusterSpec{
			Provider: "proxmox", Endpoint: "https://pve.example.com:8006/api2/json",
			Credentials: v1alpha1.HypervisorCredentials{TokenID: new(ref("keyName")), TokenSecret: new(ref("key"))},
			DNS: &v1alpha1.HypervisorDNS{Domain: forward, RegisterVMs: true, DNSProvider: &v1alpha1.DNSProvider{
				Type: "rfc2136", Server: s.Addr, Zones: []string{forward, reverse},
				Credentials: map[string]v1alpha1.SecretValueSource{"keyName": ref("keyName"), "key": ref("key")},
			}},
		},
	}
	s.must(env.Client.Create(t.Context(), s.cluster))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
		defer cancel()

		// Delete everything, because the sweeper would otherwise use the stopped server.
		if err := env.Client.Delete(ctx, s.cluster); err != nil {
			t.Error(err)
		}
	})

	return s
}

func (s *fixture) must(err error) {
	s.t.Helper()

	if err != nil {
		s.t.Fatal(err)
	}
}

// createSecret creates the Secret with the TSIG key for the operator.
func (s *fixture) createSecret(keyName, key string) {
	s.t.Helper()

	s.allowSecretAccess(s.name)

	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: s.name, Namespace: operatorNamespace}}
	_ = env.Client.Delete(s.t.Context(), secret)
	secret.ResourceVersion, secret.UID = "", ""
	secret.StringData = map[string]string{"keyName": keyName, "key": key}
	s.must(env.Client.Create(s.t.Context(), secret))
}

// createClaim creates a claim with a phase and an address.
func (s *fixture) createClaim(space, name, address string) *v1alpha1.MachineClaim {
	s.t.Helper()

	claim := s.createClaimWithoutStatus(space, name)
	s.setStatus(claim, v1alpha1.MachineClaimReady, address)

	return claim
}

func (s *fixture) createClaimWithoutStatus(space, name string) *v1alpha1.MachineClaim {
	s.t.Helper()

	claim := &v1alpha1.MachineClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: space},
		Spec: v1alpha1.MachineClaimSpec{
			TemplateRef: v1alpha1.LocalObjectReference{Name: "linux"},
			WorkloadConfig: v1alpha1.Workload{Type: "generic", Config: &v1alpha1.WorkloadConfig{
				Generic: &v1alpha1.GenericConfig{Source: "nightly", Command: []string{"/usr/bin/make"}},
			}},
		},
	}
	s.must(env.Client.Create(s.t.Context(), claim))

	return claim
}

// setStatus writes the claim's status like the runners area.
func (s *fixture) setStatus(claim *v1alpha1.MachineClaim, phase v1alpha1.MachineClaimPhase, address string) {
	s.t.Helper()
	s.must(env.Client.Get(s.t.Context(), client.ObjectKeyFromObject(claim), claim))

	base := claim.DeepCopy()
	claim.Status.Phase = phase
	claim.Status.VMRef = &v1alpha1.VMReference{HypervisorCluster: s.name, VMID: "100"}
	claim.Status.NetworkInfo = &v1alpha1.NetworkInfo{Hostname: claim.Name, FQDN: claim.Name + "." + forward, IPAddress: address}
	s.must(env.Client.Status().Patch(s.t.Context(), claim, client.MergeFrom(base)))
}

// waitUntil waits until check returns an empty text.
func (s *fixture) waitUntil(what string, check func() string) {
	s.t.Helper()

	deadline := time.Now().Add(waitTimeout)

	for {
		problem := check()
		if problem == "" {
			return
		}

		if time.Now().After(deadline) {
			s.t.Fatalf("%s: %s", what, problem)
		}

		time.Sleep(pollInterval)
	}
}

// waitForCondition waits until the claim's condition has the status and reason. An empty status means that
// the claim has no condition.
func (s *fixture) waitForCondition(claim *v1alpha1.MachineClaim, status metav1.ConditionStatus, reason string) metav1.Condition {
	s.t.Helper()

	var got metav1.Condition

	s.waitUntil("condition of "+claim.Name, func() string {
		var now v1alpha1.MachineClaim
		s.must(env.Client.Get(s.t.Context(), client.ObjectKeyFromObject(claim), &now))

		condition := meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionDNSRegistered)
		if condition == nil {
			condition = &metav1.Condition{}
		}

		if got = *condition; got.Status == status && got.Reason == reason {
			return ""
		}

		return fmt.Sprintf("%s %s: %s, want %s %s", got.Status, got.Reason, got.Message, status, reason)
	})

	return got
}

// waitForRecords waits until the names resolve to the values.
func (s *fixture) waitForRecords(want map[string][]string) {
	s.t.Helper()
	s.waitUntil("records", func() string {
		got := map[string][]string{}

		for key := range want {
			kind, name, _ := strings.Cut(key, " ")
			got[key] = s.Lookup(s.t, name, kind)
		}

		return cmp.Diff(want, got)
	})
}

// waitUntilEmpty waits until the zones have no records and no registration exists.
func (s *fixture) waitUntilEmpty() {
	s.t.Helper()
	s.waitUntil("no records and registrations", func() string {
		var list v1alpha1.DNSRegistrationList
		s.must(env.Client.List(s.t.Context(), &list))

		for i := range list.Items {
			if list.Items[i].Spec.HypervisorCluster == s.name {
				return fmt.Sprintf("registration %s: %+v", list.Items[i].Name, list.Items[i].Status.Conditions)
			}
		}

		return strings.Join(append(s.ListRecords(s.t, forward), s.ListRecords(s.t, reverse)...), "\n")
	})
}

// deleteClaim deletes the claim, and fails if the deletion is blocked.
func (s *fixture) deleteClaim(claim *v1alpha1.MachineClaim) {
	s.t.Helper()
	s.must(env.Client.Delete(s.t.Context(), claim))

	if err := env.Client.Get(s.t.Context(), client.ObjectKeyFromObject(claim), claim); !apierrors.IsNotFound(err) {
		s.t.Errorf("the claim still exists: %v, finalizers %v", err, claim.Finalizers)
	}
}

// allowSecretAccess allows the area to read a Secret that is not in its own role.
func (s *fixture) allowSecretAccess(secret string) {
	s.t.Helper()

	named := metav1.ObjectMeta{Name: secret, Namespace: operatorNamespace}

	s.must(client.IgnoreAlreadyExists(env.Client.Create(s.t.Context(), &rbacv1.Role{ObjectMeta: named, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{secret}, Verbs: []string{"get"},
	}}})))
	s.must(client.IgnoreAlreadyExists(env.Client.Create(s.t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: named, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: secret},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "hyperfleet-networking", Namespace: operatorNamespace}},
	})))
}

func TestMachineLifecycle(t *testing.T) {
	t.Parallel()

	s := newFixture(t)
	claim := s.createClaim(s.namespace, "vm1", "192.0.2.7")
	s.waitForCondition(claim, metav1.ConditionTrue, ReasonRegistered)
	s.waitForRecords(map[string][]string{"A vm1." + forward: {"192.0.2.7"}, "PTR 7.2.0.192.in-addr.arpa": {"vm1." + forward + "."}})

	// The cluster sets no TTL, so that of the API server's default applies.
	if got, want := s.ListRecords(t, forward), "vm1."+forward+". 300 IN A 192.0.2.7"; !slices.Contains(got, want) {
		t.Errorf("the zone has %v, want %s", got, want)
	}

	// The machine has a new DHCP address.
	s.setStatus(claim, v1alpha1.MachineClaimReady, "192.0.2.8")
	s.waitForRecords(map[string][]string{
		"A vm1." + forward: {"192.0.2.8"}, "PTR 7.2.0.192.in-addr.arpa": {}, "PTR 8.2.0.192.in-addr.arpa": {"vm1." + forward + "."},
	})

	// Another writer has deleted a record.
	s.RemoveRecords(t, forward, "vm1."+forward+". 0 A 192.0.2.8")
	s.waitForRecords(map[string][]string{"A vm1." + forward: {"192.0.2.8"}})

	// The machine ends, and the claim is deleted.
	s.setStatus(claim, v1alpha1.MachineClaimTerminating, "192.0.2.8")
	s.waitForCondition(claim, metav1.ConditionFalse, "Removed")
	s.waitUntilEmpty()
	s.deleteClaim(claim)
}

func TestUnavailableServerBlocksNoClaim(t *testing.T) {
	t.Parallel()

	s := newFixture(t)
	claim := s.createClaim(s.namespace, "vm1", "192.0.2.7")
	s.waitForCondition(claim, metav1.ConditionTrue, ReasonRegistered)

	name := RegistrationName(claim)

	s.Stop(t)
	s.deleteClaim(claim)

	var reg v1alpha1.DNSRegistration

	s.waitUntil("the registration has the records", func() string {
		s.must(env.Client.Get(t.Context(), client.ObjectKey{Name: name}, &reg))

		condition := meta.FindStatusCondition(reg.Status.Conditions, "Removed")
		if condition == nil || condition.Reason != ReasonUnreachable {
			return fmt.Sprintf("%+v", condition)
		}

		return ""
	})

	if len(reg.Status.Records) != 2 {
		t.Errorf("records in status: %v", reg.Status.Records)
	}

	s.Start(t)
	s.waitUntilEmpty()
}

// A record of another writer never changes, and the condition names it.
func TestRecordOfOtherWriter(t *testing.T) {
	t.Parallel()

	s := newFixture(t)
	theirs := "vm1." + forward + ". 60 IN A 192.0.2.99"
	s.AddRecords(t, forward, theirs)

	claim := s.createClaim(s.namespace, "vm1", "192.0.2.7")
	if got := s.waitForCondition(claim, metav1.ConditionFalse, ReasonRecordNotOurs); !strings.Contains(got.Message, "A 192.0.2.99") {
		t.Errorf("the message does not name the record: %s", got.Message)
	}

	if got := s.ListRecords(t, forward); !cmp.Equal(got, []string{theirs}) {
		t.Errorf("the zone has %v", got)
	}

	// The other writer deletes the record, so the name is free.
	s.RemoveRecords(t, forward, theirs)
	s.waitForCondition(claim, metav1.ConditionTrue, ReasonRegistered)

	// The other writer adds a record next to ours.
	s.AddRecords(t, forward, theirs)
	s.deleteClaim(claim)
	s.waitUntil("only the record of the other writer is left", func() string { return cmp.Diff([]string{theirs}, s.ListRecords(t, forward)) })
	s.RemoveRecords(t, forward, theirs)
	s.waitUntilEmpty()
}

func TestTwoMachinesWithOneName(t *testing.T) {
	t.Parallel()

	s := newFixture(t)
	first := s.createClaim(s.namespace, "vm1", "192.0.2.7")
	s.waitForCondition(first, metav1.ConditionTrue, ReasonRegistered)

	second := s.createClaim(env.Namespace(t), "vm1", "192.0.2.8")
	// While another reconcile works on the name, the message says that another machine is being registered.
	s.waitUntil("the message names the other machine", func() string {
		got := s.waitForCondition(second, metav1.ConditionFalse, ReasonNameTaken)
		if strings.Contains(got.Message, s.namespace+"/vm1") {
			return ""
		}

		return got.Message
	})

	s.waitForRecords(map[string][]string{"A vm1." + forward: {"192.0.2.7"}})
	s.deleteClaim(first)
	s.waitForRecords(map[string][]string{"A vm1." + forward: {"192.0.2.8"}, "PTR 7.2.0.192.in-addr.arpa": {}})
	s.deleteClaim(second)
	s.waitUntilEmpty()
}

func TestWrongKeyIsCorrected(t *testing.T) {
	t.Parallel()

	s := newFixture(t)
	s.createSecret(dnstest.KeyName, "bm90LXRoZS1rZXktbm90LXRoZS1rZXk=")

	claim := s.createClaim(s.namespace, "vm1", "192.0.2.7")
	if got := s.waitForCondition(claim, metav1.ConditionFalse, ReasonTSIGRefused); strings.Contains(got.Message, "bm90LXRo") {
		t.Errorf("the key is in the message: %s", got.Message)
	}

	s.createSecret(dnstest.KeyName, s.Key)
	s.waitForCondition(claim, metav1.ConditionTrue, ReasonRegistered)
	s.deleteClaim(claim)
	s.waitUntilEmpty()
}

// A Secret that allows other servers is not used for this server.
func TestSecretAllowsServers(t *testing.T) {
	t.Parallel()

	s := newFixture(t)
	s.createSecret(dnstest.KeyName, s.Key)
	s.setAllowedServers("dns.example.com:53")

	claim := s.createClaim(s.namespace, "vm1", "192.0.2.7")

	got := s.waitForCondition(claim, metav1.ConditionFalse, credential.ReasonServerNotAllowed)
	if want := v1alpha1.AnnotationAllowedServers + "=" + s.Addr; !strings.Contains(got.Message, want) {
		t.Errorf("the message does not say %q: %s", want, got.Message)
	}

	s.waitForRecords(map[string][]string{})
	s.setAllowedServers(s.Addr)
	s.waitForCondition(claim, metav1.ConditionTrue, ReasonRegistered)
	s.deleteClaim(claim)
	s.waitUntilEmpty()
}

// setAllowedServers sets the servers that the Secret allows.
func (s *fixture) setAllowedServers(servers string) {
	s.t.Helper()

	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: s.name, Namespace: operatorNamespace}}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.AnnotationAllowedServers, servers)
	s.must(env.Client.Patch(s.t.Context(), secret, client.RawPatch(types.MergePatchType, patch)))
}

// The cluster decides which names the machines of a namespace can have, not the claim or its status.
// Existing records stay when the list becomes narrower.
func TestNamesOfNamespaces(t *testing.T) {
	t.Parallel()

	s := newFixture(t)
	s.waitForCondition(s.createClaim(s.namespace, "vm1", "192.0.2.7"), metav1.ConditionTrue, ReasonRegistered)
	s.waitForRecords(map[string][]string{"A vm1." + forward: {"192.0.2.7"}, "A www." + forward: {}})

	s.setAllowedNamespaces(v1alpha1.NamespaceAccess{Names: []string{s.namespace}, Domains: []string{"team-a." + forward}})

	www := s.createClaim(s.namespace, "www", "192.0.2.8")
	refused := s.waitForCondition(www, metav1.ConditionFalse, tenancy.ReasonDomain)

	if want := "only names in team-a." + forward + ":"; !strings.Contains(refused.Message, want) {
		t.Errorf("message %q: want it to name %s", refused.Message, want)
	}

	s.waitForRecords(map[string][]string{"A vm1." + forward: {"192.0.2.7"}, "A www." + forward: {}})

	s.setAllowedNamespaces(v1alpha1.NamespaceAccess{Names: []string{s.namespace}, Domains: []string{strings.ToUpper(forward)}})
	s.waitForCondition(www, metav1.ConditionTrue, ReasonRegistered)
}

// A host name and a domain that are valid each can be too long together. The condition says so.
func TestNameTooLong(t *testing.T) {
	t.Parallel()

	s := newFixture(t)
	longest := s.createClaim(s.namespace, strings.Repeat("v", 63), "192.0.2.7")
	s.waitForCondition(longest, metav1.ConditionTrue, ReasonRegistered)
	s.waitForRecords(map[string][]string{"A " + longest.Name + "." + forward: {"192.0.2.7"}})

	claim := s.createClaimWithoutStatus(s.namespace, "vm2")
	claim.Status = *longest.Status.DeepCopy()
	claim.Status.NetworkInfo.FQDN = longest.Name + strings.Repeat(".d", 100) + "." + forward
	s.must(env.Client.Status().Update(t.Context(), claim))

	if c := s.waitForCondition(claim, metav1.ConditionFalse, "NameTooLong"); !strings.Contains(c.Message, "shorten dns.domain") {
		t.Errorf("message %q", c.Message)
	}
}

func TestRegistrationIsDisabled(t *testing.T) {
	t.Parallel()

	s := newFixture(t)
	claim := s.createClaim(s.namespace, "vm1", "192.0.2.7")
	s.waitForCondition(claim, metav1.ConditionTrue, ReasonRegistered)

	s.must(env.Client.Get(t.Context(), client.ObjectKeyFromObject(s.cluster), s.cluster))
	s.cluster.Spec.DNS.RegisterVMs = false
	s.must(env.Client.Update(t.Context(), s.cluster))
	s.waitForCondition(claim, "", "")
	s.waitUntilEmpty()
}

// Without zones, the domain is the zone.
func TestZoneIsTheDomain(t *testing.T) {
	t.Parallel()

	s := newFixture(t)
	s.must(env.Client.Get(t.Context(), client.ObjectKeyFromObject(s.cluster), s.cluster))
	s.cluster.Spec.DNS.DNSProvider.Zones = nil
	s.must(env.Client.Update(t.Context(), s.cluster))

	claim := s.createClaim(s.namespace, "vm1", "192.0.2.7")
	s.waitForCondition(claim, metav1.ConditionTrue, ReasonRegistered)
	s.waitForRecords(map[string][]string{"A vm1." + forward: {"192.0.2.7"}, "PTR 7.2.0.192.in-addr.arpa": {}})
}

// A refused zone does not block the other zones, and the condition names it.
func TestRefusedZone(t *testing.T) {
	t.Parallel()

	s := newFixture(t)
	s.must(env.Client.Get(t.Context(), client.ObjectKeyFromObject(s.cluster), s.cluster))
	s.cluster.Spec.DNS.DNSProvider.Zones = []string{forward, "0.192.in-addr.arpa"}
	s.must(env.Client.Update(t.Context(), s.cluster))

	claim := s.createClaim(s.namespace, "vm1", "192.0.2.7")
	if got := s.waitForCondition(claim, metav1.ConditionFalse, ReasonZoneRefused); !strings.Contains(got.Message, "zone 0.192.in-addr.arpa") {
		t.Errorf("the message does not name the zone: %s", got.Message)
	}

	s.waitForRecords(map[string][]string{"A vm1." + forward: {"192.0.2.7"}})

	s.must(env.Client.Get(t.Context(), client.ObjectKeyFromObject(s.cluster), s.cluster))
	s.cluster.Spec.DNS.DNSProvider.Zones = []string{forward, reverse}
	s.must(env.Client.Update(t.Context(), s.cluster))
	s.waitForRecords(map[string][]string{"PTR 7.2.0.192.in-addr.arpa": {"vm1." + forward + "."}})
}

// If another client removes the finalizer of a registration, the sweeper deletes its records. It does not
// delete records of another operator.
func TestSweep(t *testing.T) {
	t.Parallel()

	s := newFixture(t)
	record := v1alpha1.DNSRecord{Name: "vm2." + forward, Type: typeA, Value: "192.0.2.9"}
	mark := ownershipText(Owner{Operator: "op-2", UID: "u", Claim: "a/b"}, record)
	theirs := []string{
		"_hyperfleet.vm2." + forward + `. 60 IN TXT "` + mark + `"`, "vm2." + forward + ". 60 IN A 192.0.2.9",
	}
	s.AddRecords(t, forward, theirs...)

	claim := s.createClaim(s.namespace, "vm1", "192.0.2.7")
	s.waitForCondition(claim, metav1.ConditionTrue, ReasonRegistered)

	s.Stop(t)
	s.deleteClaim(claim)

	reg := &v1alpha1.DNSRegistration{}
	s.waitUntil("the registration is deleted", func() string {
		if err := env.Client.Get(t.Context(), client.ObjectKey{Name: RegistrationName(claim)}, reg); apierrors.IsNotFound(err) {
			return ""
		}

		base := reg.DeepCopy()
		reg.Finalizers = nil
		_ = env.Client.Patch(t.Context(), reg, client.MergeFrom(base))

		return "still there"
	})

	s.Start(t)
	s.waitUntil("only the record of the other operator is left", func() string {
		return cmp.Diff(theirs, s.ListRecords(t, forward))
	})
}
