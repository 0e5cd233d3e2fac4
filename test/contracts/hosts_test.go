// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package contracts_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	baseFleet = `
apiVersion: infrastructure.hyperfleet.io/v1alpha1
kind: HostFleet
metadata: {name: base, namespace: default}
spec: {hostKind: LinuxMachine}
`
	baseLinux = `
apiVersion: infrastructure.hyperfleet.io/v1alpha1
kind: LinuxMachine
metadata: {name: base, namespace: default}
spec:
  fleetName: base
  address: 192.0.2.10
  sshKeySecretRef: {name: hosts, key: ssh-privatekey}
  kubeconfigSecretRef: {name: hosts, key: kubeconfig}
`
)

const macKind = "ScalewayAppleSiliconMachine"

// changeMacOS sets the macOS version of a fleet.
func changeMacOS(kind, version, timeout string) change {
	return change{
		"spec.hostKind": kind, "spec.drain": anyMap{"kubeconfigSecretRef": anyMap{"name": "nodes", "key": "kubeconfig"}},
		"spec.macOS": anyMap{"version": version, "timeout": timeout},
	}
}

func listFleetRejections() []rejection {
	const (
		most    = "spec.rollout.maxUnavailable"
		range1  = "maxUnavailable must be a number from 1 to 10000"
		windows = "spec.rollout.maintenanceWindows"
	)

	window := func(field string, value any) change {
		out := anyMap{"name": "night", "start": "0 2 * * *", "duration": "2h"}
		out[field] = value

		return change{windows: list{out}}
	}

	return []rejection{
		{"no kind", change{"spec.hostKind": removed{}}, "spec.hostKind", "Required value"},
		{"fewer than no hosts", change{"spec.replicas": int64(-1), "spec.templateHost": "a"}, "spec.replicas", "should be greater than or equal to 0"},
		{"replicas without a template", change{"spec.replicas": int64(1)}, "spec", "replicas needs templateHost"},
		{"hosts like a path", change{"spec.templateHost": "a/b"}, "spec.templateHost", "templateHost must be the name of a host"},
		{"none in parallel", change{most: int64(0)}, most, range1},
		{"no percent", change{most: "0%"}, most, range1},
		{"more than all", change{most: "101%"}, most, range1},
		{"number as text", change{most: "3"}, most, range1},
		{"jitter as text", change{"spec.rollout.jitter": "some"}, "spec.rollout.jitter", "jitter must be a time such as"},
		{"window of no time", window("duration", "0s"), windows, "duration must be a time above zero"},
		{"drain in no time", changeDrain("kubeconfig", "key", "0s"), "spec.drain.timeout", "drain.timeout must be a time of one second to 24 hours"},
		{"drain by no Secret", changeDrain("Nodes", "key", "1m"), "spec.drain.kubeconfigSecretRef.name", "name must be the name of a Secret"},
		{"drain by no key", changeDrain("nodes", "a key", "1m"), "spec.drain.kubeconfigSecretRef.key", "key must be a key of a Secret"},
		{"drain without a kubeconfig", change{"spec.drain": anyMap{}}, "spec.drain.kubeconfigSecretRef", "Required value"},
		{"macOS of Linux hosts", changeMacOS("LinuxMachine", "15.3.1", "2h"), "spec", "macOS is only allowed with hostKind ScalewayAppleSiliconMachine"},
		{"macOS without a drain", change{"spec.hostKind": macKind, "spec.macOS": anyMap{"version": "15.3.1"}}, "spec", "macOS needs drain"},
		{"macOS of a name", changeMacOS(macKind, "Sequoia", "2h"), "spec.macOS.version", "macOS.version must be a version as sw_vers prints it"},
		{"macOS of a number", changeMacOS(macKind, "15", "2h"), "spec.macOS.version", "macOS.version must be a version as sw_vers prints it"},
		{"macOS in no time", changeMacOS(macKind, "15.3", "0s"), "spec.macOS.timeout", "macOS.timeout must be a time of one second to 24 hours"},
		{"credentials for minutes", changeCredentials("nodes", "key", "59m"), "spec.nodeCredentials.lifetime", "nodeCredentials.lifetime must be a time of one hour to 8760h"},
		{"credentials by no Secret", changeCredentials("Nodes", "key", "1h"), "spec.nodeCredentials.kubeconfigSecretRef.name", "name must be the name of a Secret"},
		{"credentials by no key", changeCredentials("nodes", "a key", "1h"), "spec.nodeCredentials.kubeconfigSecretRef.key", "key must be a key of a Secret"},
		{"window as text", window("start", "at night"), windows, "at least 9 chars"},
		{
			"two windows of a name",
			change{windows: list{
				anyMap{"name": "a", "start": "0 2 * * *", "duration": "2h"}, anyMap{"name": "a", "start": "0 3 * * *", "duration": "2h"},
			}},
			windows + "[1]", "Duplicate value",
		},
	}
}

// changeCredentials sets a fleet's credentials for Nodes.
func changeCredentials(secret, key, lifetime string) change {
	return change{"spec.nodeCredentials": anyMap{"kubeconfigSecretRef": anyMap{"name": secret, "key": key}, "lifetime": lifetime}}
}

const authorities = "sshHostCertAuthorities must be public keys"

func changeAuthority(line string) change { return change{"spec.sshHostCertAuthorities": list{line}} }

func listLinuxRejections() []rejection {
	const address = "address must be an IP address or a DNS name, without a port"

	name := "a-host-whose-name-is-longer-than-the-name-of-a-host-may-be-of-63-chars"

	return []rejection{
		{"no fleet", change{"spec.fleetName": removed{}}, "spec.fleetName", "Required value"},
		{"fleet by path", change{"spec.fleetName": "a/b"}, "spec.fleetName", "fleetName must be the name of a HostFleet"},
		{"address with a port", change{"spec.address": "192.0.2.10:22"}, "spec.address", address},
		{"address with a user", change{"spec.address": "root@host"}, "spec.address", address},
		{"address that is an option", change{"spec.address": "-oProxyCommand=x"}, "spec.address", address},
		{"other address with a port", change{"spec.fallbackAddresses": list{"192.0.2.10:22"}}, "spec.fallbackAddresses", "fallbackAddresses must be IP addresses or DNS names"},
		{"many other addresses", change{"spec.fallbackAddresses": list{"a", "b", "c", "d"}}, "spec.fallbackAddresses", "must have at most 3 items"},
		{"user with a space", change{"spec.user": "a b"}, "spec.user", "user must be the name of a user"},
		{"Secret by path", change{"spec.sshKeySecretRef.name": "a/b"}, "spec.sshKeySecretRef.name", "name must be the name of a Secret"},
		{"key with a space", change{"spec.sshKeySecretRef.key": "a b"}, "spec.sshKeySecretRef.key", "key must be a key of a Secret"},
		{"kubeconfig by path", change{"spec.kubeconfigSecretRef.name": "a/b"}, "spec.kubeconfigSecretRef.name", "name must be the name of a Secret"},
		{"kubeconfig by no key", change{"spec.kubeconfigSecretRef.key": "a b"}, "spec.kubeconfigSecretRef.key", "key must be a key of a Secret"},
		{"host key without a hash", change{"spec.sshHostKey": "aa:bb"}, "spec.sshHostKey", "sshHostKey must be a fingerprint"},
		{"key checking with OpenSSH's value", change{"spec.sshHostKeyChecking": "accept-new"}, "spec.sshHostKeyChecking", "Unsupported value"},
		{"authority by a fingerprint", changeAuthority("SHA256:AbCd"), "spec.sshHostCertAuthorities[0]", authorities},
		{"authority with a pattern", changeAuthority("@cert-authority * ssh-ed25519 AAAA"), "spec.sshHostCertAuthorities[0]", authorities},
		{"two authorities in one", changeAuthority("ssh-ed25519 AAAA\nssh-ed25519 BBBB"), "spec.sshHostCertAuthorities[0]", authorities},
		{"five authorities", change{"spec.sshHostCertAuthorities": list{"ssh-rsa A", "ssh-rsa B", "ssh-rsa C", "ssh-rsa D", "ssh-rsa E"}}, "spec.sshHostCertAuthorities", "must have at most 4 items"},
		{"name too long for a host", change{"metadata.name": name}, "LinuxMachine", "the name must have at most 63 characters"},
	}
}

func listHostUpdates() []update {
	return []update{
		{"fleet of another kind", baseFleet, change{"spec.hostKind": "Other"}, "hostKind cannot be changed: create another fleet"},
		{"fleet pauses", baseFleet, change{"spec.paused": true}, ""},
		{"host moves fleets", baseLinux, change{"spec.fleetName": "other"}, "fleetName cannot be changed: delete the host"},
		{"host has an authority", baseLinux, changeAuthority("ssh-ed25519 AAAAC3Nz== an authority of ours"), ""},
		{"host moves house", baseLinux, change{"spec.address": "rack-1.example.com"}, ""},
	}
}

// requireStatusKept: the API server keeps every status field that the operator writes. It would silently drop
// a field that is missing in the schema, and the operator would then configure a host in every reconcile.
func requireStatusKept(t *testing.T, base string, want anyMap) {
	t.Helper()

	object := parseObject(t, base)
	object.SetNamespace(env.Namespace(t))
	env.Create(t, object)

	object.Object["status"] = want
	if err := newStrictClient().Status().Update(t.Context(), object); err != nil {
		t.Fatal(err)
	}

	if diff := cmp.Diff(want, object.Object["status"]); diff != "" {
		t.Error(diff)
	}

	if diff := cmp.Diff(want, convertTyped(t, object)["status"]); diff != "" {
		t.Errorf("the Go type changes the status: %s", diff)
	}
}

// convertTyped returns the object as its Go type marshals it.
func convertTyped(t *testing.T, object *unstructured.Unstructured) anyMap {
	t.Helper()

	typed, err := env.Scheme.New(object.GroupVersionKind())
	if err != nil {
		t.Fatal(err)
	}

	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, typed, true); err != nil {
		t.Fatalf("read as %T: %v", typed, err)
	}

	out, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
	if err != nil {
		t.Fatal(err)
	}

	return out
}

func TestHostStatusIsKept(t *testing.T) {
	t.Parallel()
	requireStatusKept(t, baseLinux, anyMap{
		"hostConfigHash": "a1", "failedHostConfigHash": "b2", "bootstrapAttempts": int64(2), "updateAttempts": int64(3),
		"bootstrapped": true, "phase": "Failed", "failureReason": "UpdateExceededRetries", "failureMessage": "because",
		"sshHostKey": "SHA256:x", "lastUpdateFailureTime": "2026-01-02T03:04:05Z",
		"addresses": list{anyMap{"type": "InternalIP", "address": "192.0.2.10"}},
		"parts":     list{anyMap{"label": "agent", "sha256": "c3"}}, "lostParts": list{"agent"}, "lastPermit": int64(7),
		"push":             anyMap{"permit": int64(8), "hash": "a1", "what": "Update", "started": "2026-01-02T03:04:05Z"},
		"unreachableSince": "2026-01-02T03:04:05Z", "lastContactTime": "2026-01-02T03:04:05Z", "contactAttempts": int64(1), "contactMessage": "no route",
		"contactReason": "Unreachable", "contactAddress": "192.0.2.10:22",
		"nodeCredential": anyMap{
			"from": "2026-01-02T03:04:05Z", "until": "2026-01-09T03:04:05Z",
			"removalStartedAt": "2026-01-02T03:04:05Z", "removedAt": "2026-01-02T03:04:06Z",
		},
		"osVersion": "15.2", "osUpdate": anyMap{
			"version": "15.3.1", "startedAt": "2026-01-02T03:04:05Z", "label": "macOS Sequoia 15.3.1-24D70",
			"drain":            anyMap{"startedAt": "2026-01-02T03:04:05Z", "endedAt": "2026-01-02T03:04:06Z", "reason": "Drained"},
			"installStartedAt": "2026-01-02T03:04:06Z", "progress": "Downloading: 37.12%", "awaySince": "2026-01-02T03:05:05Z",
			"endedAt": "2026-01-02T03:06:05Z", "reason": "VersionUnchanged", "message": "m",
		},
		"drain": anyMap{"startedAt": "2026-01-02T03:04:05Z", "nodeUID": "u", "endedAt": "2026-01-02T03:04:06Z", "reason": "Drained", "message": "m"},
	})
}
