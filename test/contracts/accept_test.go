// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package contracts_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestMinimalObjectsAreAccepted(t *testing.T) {
	t.Parallel()

	for name, base := range map[string]string{
		"HypervisorCluster": baseCluster, "HypervisorMachineTemplate": baseTemplate,
		"RunnerPool": basePool, "MachineClaim": baseClaim, "RunnerJob": baseJob, "RunnerJobBatch": baseBatch, "RunnerLog": baseLog,
		"DNSRegistration":  baseRegistration,
		"KubevirtNodePool": baseNodePool, "KubevirtMachine": baseMachine, "KubevirtMachineTemplate": baseMachineTemplate,
		"HostFleet": baseFleet, "LinuxMachine": baseLinux, "ScalewayAppleSiliconMachine": baseMac,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if err := newStrictClient().Create(t.Context(), parseObject(t, base), client.DryRunAll); err != nil {
				t.Error(err)
			}
		})
	}
}

// The API server adds the defaults of fields that are not set.
func TestDefaults(t *testing.T) {
	t.Parallel()

	withGitHub := change{"spec.bootstrap": anyMap{"config": anyMap{
		"github": anyMap{"credentials": newSecretRef("github", "pat"), "runner": anyMap{}}, "httpClient": anyMap{},
	}}}

	tests := []struct {
		base   string
		change change
		path   string
		want   any
	}{
		{baseCluster, nil, "spec.vmIdRange", anyMap{"min": int64(100000), "max": int64(199999)}},
		{baseCluster, nil, "spec.limits", anyMap{"clonesPerStorage": int64(2), "callsPerNode": int64(4)}},
		{baseCluster, change{"spec.limits": anyMap{"callsPerNode": int64(3)}}, "spec.limits.clonesPerStorage", int64(2)},
		{baseCluster, change{"spec.dns": anyMap{"validation": anyMap{}}}, "spec.dns.validation.timeoutSeconds", int64(10)},
		{baseCluster, change{"spec.network": anyMap{"validation": anyMap{}}}, "spec.network.validation.timeoutSeconds", int64(30)},
		{
			baseTemplate, nil, "spec.template.proxmox",
			anyMap{"templateId": int64(9000), "clone": true, "linkedClone": true, "cloudInitSource": "nocloud"},
		},
		{baseTemplate, nil, "spec.bootstrap", anyMap{"method": "runner-token", "delivery": "image"}},
		{baseBridge, nil, "spec.provisioningTimeout", "1h"},
		{baseTemplate, nil, "spec.attestation", nil},
		{baseTemplate, change{"spec.attestation": anyMap{}}, "spec.attestation.method", "join-token"},
		{baseTemplate, change{"spec.network": anyMap{}}, "spec.network.mode", "dhcp"},
		{
			baseTemplate, change{"spec.network": anyMap{"dhcp": anyMap{}}}, "spec.network.dhcp",
			anyMap{"enabled": true, "sendHostname": true, "clientIdentifier": "mac", "useRoutes": true, "useDNS": true},
		},
		{baseTemplate, withGitHub, github + ".registration", "jit"},
		{baseTemplate, withGitHub, "spec.bootstrap.config.httpClient.timeoutSeconds", int64(30)},
		{
			baseTemplate, withGitHub, github + ".runner", anyMap{
				"installPath": "/opt/actions-runner", "workDir": "/tmp/runner-work", "configScript": "config.sh",
				"runScript": "run.sh", "os": "linux", "arch": "x64",
			},
		},
		{basePool, nil, "spec.scaling", anyMap{"minReplicas": int64(0), "maxReplicas": int64(10), "scaleDownDelay": "5m0s"}},
		{basePool, change{"spec.scaling": anyMap{"maxReplicas": int64(0)}}, "spec.scaling.maxReplicas", int64(0)},
		{basePool, nil, "spec.lifecycle", anyMap{"bootstrapTimeout": "15m0s"}},
		{baseClaim, nil, "spec.lifecycle", anyMap{"bootstrapTimeout": "15m0s"}},
		{baseMac, nil, "spec.type", "M4-S"},
		{baseMac, nil, "spec.zone", "fr-par-1"},
		{baseMac, nil, "spec.sshPort", int64(22)},
		{baseMachine, nil, "spec.bootstrapNetworkConfig.interface", "eno101"},
		{baseMachineTemplate, nil, "spec.template.spec.bootstrapNetworkConfig.interface", "eno101"},
		{baseNodePool, nil, "spec.replicas", int64(1)},
		{baseNodePool, nil, "spec.attachDefaultNetwork", true},
		{baseNodePool, nil, "spec.compute", anyMap{"cores": int64(2), "memory": "8Gi", "qosClass": "Burstable"}},
		{baseBridge, change{"spec.exposeThroughLoadBalancer": false, "spec.metalLBVirtualIP": removed{}}, "spec.metalLBVirtualIP", ""},
		{baseBridge, nil, "spec.networking", anyMap{
			"clusterNetwork": list{anyMap{"cidr": "10.132.0.0/14"}}, "serviceNetwork": list{anyMap{"cidr": "172.31.0.0/16"}},
		}},
		{baseBridge, nil, "status.conditions", list{anyMap{
			"type": "Ready", "status": "Unknown", "reason": "NotReconciled", "message": "the operator has not reconciled the bridge yet",
			"lastTransitionTime": "1970-01-01T00:00:00Z",
		}}},
	}

	for _, test := range tests {
		object := test.change.apply(t, test.base)

		t.Run(object.GetKind()+"/"+test.path, func(t *testing.T) {
			t.Parallel()

			if err := newStrictClient().Create(t.Context(), object, client.DryRunAll); err != nil {
				t.Fatal(err)
			}

			if diff := cmp.Diff(test.want, getNested(t, object, test.path)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", test.path, diff)
			}
		})
	}
}

// These unusual values are valid.
func TestUnusualValuesAreAccepted(t *testing.T) {
	t.Parallel()

	tests := []struct {
		why    string
		base   string
		change change
	}{
		{"IPv6 endpoint", baseCluster, change{"spec.endpoint": "https://[fd00::1]:8006/api2/json"}},
		{"password", baseCluster, change{credentials: anyMap{"username": newSecretRef("a", "b"), "password": newSecretRef("a", "c")}}},
		{"certificate alone", baseCluster, change{credentials: anyMap{"clientCert": newSecretRef("a", "tls.crt"), "clientKey": newSecretRef("a", "tls.key")}}},
		{"certificate beside a token", baseCluster, change{
			"spec.credentials.clientCert": newSecretRef("a", "tls.crt"), "spec.credentials.clientKey": newSecretRef("a", "tls.key"),
		}},
		{"trust that is not insecure", baseCluster, change{"spec.tls": anyMap{"caBundle": "YQ==", "insecureSkipVerify": false}}},
		{"range of one", baseCluster, change{"spec.vmIdRange": anyMap{"min": int64(100), "max": int64(100)}}},
		{"nested pool", baseCluster, change{"spec.resourcePool": "ci/linux/small"}},
		{"the document's tags", baseCluster, change{"spec.tags": anyMap{"environment": "production", "managed-by": "hyperfleet"}}},
		{"memory in bytes", baseTemplate, change{"spec.resources.memory": int64(8589934592)}},
		{
			"devices", baseTemplate,
			change{"spec.resources.devices": list{anyMap{"name": "gpu"}, anyMap{"name": "nvidia.com/GA102GL_A10", "count": int64(15), "type": "gpu"}}},
		},
		{"memory in powers of ten", baseTemplate, change{"spec.resources.memory": "8G"}},
		{"disk in powers of ten", baseTemplate, change{"spec.resources.disk": "50G"}},
		{"full clone elsewhere", baseTemplate, change{proxmox + ".linkedClone": false, proxmox + ".storage": "ceph"}},
		{"builtin", baseTemplate, change{proxmox + ".cloudInitSource": "builtin", proxmox + ".snippetsStorage": "nfs-snippets"}},
		{"IPv6 address", baseTemplate, change{"spec.network": anyMap{
			"mode": "static", "static": anyMap{"ipAddress": "fd00::5", "netmask": "64", "gateway": "fd00::1"},
		}}},
		{"pool of addresses", baseTemplate, change{"spec.network": anyMap{"mode": "static", "static": anyMap{"pool": anyMap{
			"addresses":         list{"10.0.0.0/24", "10.0.1.1-10.0.1.9", "fd00::5/128"},
			"excludedAddresses": list{"10.0.0.7/32"}, "gateway": list{"10.0.0.1", "fe80::1"}, "nameservers": list{"10.0.0.2"},
			"prefixLengthV4": int64(16), "prefixLengthV6": int64(64),
		}}}}},
		{"owner that is an organisation", baseTemplate, change{github: anyMap{"credentials": newSecretRef("a", "b"), "owner": "example"}}},
		{"GitHub on loopback", baseTemplate, change{github: anyMap{"credentials": newSecretRef("a", "b"), "apiUrl": "http://127.0.0.1:8080"}}},
		{"time in parts", basePool, change{"spec.lifecycle": anyMap{"maxLifetime": "1h30m", "idleTimeout": "1.5h", "jobTimeout": "999h59m59.123s"}}},
		{"no delay", basePool, change{"spec.scaling": anyMap{"scaleDownDelay": "0s"}}},
		{"pool without machines", basePool, change{"spec.scaling": anyMap{"maxReplicas": int64(0)}}},
		{"labels with spaces", basePool, change{"spec.workload.config.github.labels": list{"linux x64"}}},
		{"no labels of its own", basePool, change{"spec.workload.config.github.labels": list{}}},
		{"tags with spaces", basePool, change{"spec.workload": anyMap{
			"type": "gitlab-ci", "config": anyMap{"gitlab": anyMap{"url": "https://g", "tags": list{"linux x64"}}},
		}}},
		{"jobs without tags", basePool, change{"spec.workload": anyMap{
			"type": "gitlab-ci", "config": anyMap{"gitlab": anyMap{"url": "https://g", "runUntagged": true}},
		}}},
		{"agents' tags of every form", basePool, change{"spec.workload": anyMap{"type": "buildkite", "config": anyMap{"buildkite": anyMap{
			"organization": "a", "tags": list{"os=linux", "docker", " gpu = a100 80 GB\n", "queues=2"},
		}}}}},
		{"agents without tags", basePool, change{"spec.workload": anyMap{"type": "buildkite", "config": anyMap{"buildkite": anyMap{"organization": "a"}}}}},
		{"machines without labels", basePool, change{"spec.workload": anyMap{"type": "generic", "config": anyMap{"generic": anyMap{
			"source": "nightly", "command": list{"/usr/bin/make"}, "labels": list{},
		}}}}},
		{"size in bytes", baseClaim, change{"spec.size": anyMap{"memory": int64(8589934592), "disk": "50G"}}},
		{"limits of namespaces", baseCluster, accessTo("addresses", list{"10.0.0.0/24", "10.0.0.1 - 10.0.0.9", "fd00::/64"})},
		{"named runner", baseClaim, change{"spec.workloadConfig": anyMap{
			"type": "github-actions", "config": anyMap{"github": anyMap{"runnerName": "runner-abc123"}},
		}}},
		{"longest host name", baseClaim, change{"metadata.name": strings.Repeat("a", 63)}},
		{"longest pool name", basePool, change{"metadata.name": strings.Repeat("a", 52)}},
	}

	for _, test := range tests {
		t.Run(test.why, func(t *testing.T) {
			t.Parallel()

			if err := newStrictClient().Create(t.Context(), test.change.apply(t, test.base), client.DryRunAll); err != nil {
				t.Error(err)
			}
		})
	}
}
