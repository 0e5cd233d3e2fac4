// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package contracts_test

import "testing"

const baseMac = `
apiVersion: infrastructure.hyperfleet.io/v1alpha1
kind: ScalewayAppleSiliconMachine
metadata: {name: base, namespace: default}
spec:
  fleetName: base
  credentialsSecretRef: {name: scaleway}
  sshKeySecretRef: {name: hosts, key: ssh-privatekey}
  kubeconfigSecretRef: {name: hosts, key: kubeconfig}
`

func listMacRejections() []rejection {
	const name = "a-host-whose-name-is-longer-than-the-name-of-a-host-may-be-of-63-chars"

	return []rejection{
		{"no fleet", change{"spec.fleetName": removed{}}, "spec.fleetName", "Required value"},
		{"fleet by path", change{"spec.fleetName": "a/b"}, "spec.fleetName", "fleetName must be the name of a HostFleet"},
		{"type as text", change{"spec.type": "mac mini"}, "spec.type", "type must be a type of server such as M4-S"},
		{"region as a zone", change{"spec.zone": "fr-par"}, "spec.zone", "zone must be a zone such as fr-par-1"},
		{"zone as a path", change{"spec.zone": "fr-par-1/../x"}, "spec.zone", "zone must be a zone such as fr-par-1"},
		{
			"pool of our own machines", change{"spec.adoptPoolPrefix": "hf-mac"},
			"spec.adoptPoolPrefix", "adoptPoolPrefix must be the beginning of server names",
		},
		{
			"pool and operating system", change{"spec.adoptPoolPrefix": "mac-", "spec.os": "macos-15"},
			"spec", "os is only allowed for servers that are ordered",
		},
		{"other address with a port", change{"spec.fallbackAddresses": list{"192.0.2.10:22"}}, "spec.fallbackAddresses", "fallbackAddresses must be IP addresses or DNS names"},
		{"host key without a hash", change{"spec.sshHostKey": "aa:bb"}, "spec.sshHostKey", "sshHostKey must be a fingerprint"},
		{"key checking of no kind", change{"spec.sshHostKeyChecking": "No"}, "spec.sshHostKeyChecking", "Unsupported value"},
		{"authority by a fingerprint", changeAuthority("SHA256:AbCd"), "spec.sshHostCertAuthorities[0]", authorities},
		{"no credentials", change{"spec.credentialsSecretRef": removed{}}, "spec.credentialsSecretRef", "Required value"},
		{
			"credentials by path", change{"spec.credentialsSecretRef.name": "a/b"},
			"spec.credentialsSecretRef.name", "name must be the name of a Secret",
		},
		{"Secret by path", change{"spec.sshKeySecretRef.name": "a/b"}, "spec.sshKeySecretRef.name", "name must be the name of a Secret"},
		{"key with a space", change{"spec.sshKeySecretRef.key": "a b"}, "spec.sshKeySecretRef.key", "key must be a key of a Secret"},
		{"name too long for a host", change{"metadata.name": name}, "ScalewayAppleSiliconMachine", "at most 63 characters"},
	}
}

func listMacUpdates() []update {
	return []update{
		{"mac moves fleets", baseMac, change{"spec.fleetName": "other"}, "fleetName cannot be changed: delete the host"},
		{"mac of another type", baseMac, change{"spec.type": "M1-M"}, "type cannot be changed: delete the machine"},
		{"mac elsewhere", baseMac, change{"spec.zone": "fr-par-3"}, "zone cannot be changed: delete the machine"},
		{"mac with another system", baseMac, change{"spec.os": "macos-15"}, "os cannot be changed: delete the machine"},
		{"mac of a pool, now", baseMac, change{"spec.adoptPoolPrefix": "mac-"}, "adoptPoolPrefix cannot be changed: delete the machine"},
		{"mac with another API key", baseMac, change{"spec.credentialsSecretRef.name": "other"}, ""},
	}
}

func TestMacStatusIsKept(t *testing.T) {
	t.Parallel()
	requireStatusKept(t, baseMac, anyMap{
		"hostConfigHash": "a1", "failedHostConfigHash": "b2", "tartKubeletBinarySHA": "c3", "bootstrapAttempts": int64(2),
		"bootstrapRebootIssued": true, "wipeIssued": true, "phase": "Ready", "failureReason": "UpdateExceededRetries",
		"serverID": "id", "providerID": "scw-applesilicon://fr-par-1/id", "poolName": "mac-pool-1",
		"orderedAt": "2026-01-02T03:04:05Z", "hostCPU": int64(10), "hostMemoryMB": int64(16384),
	})
}
