// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package contracts_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// A minimal valid object of each kind. Each row of the tables changes one field of it.
const (
	baseCluster = `
apiVersion: hyperfleet.io/v1alpha1
kind: HypervisorCluster
metadata: {name: base}
spec:
  provider: proxmox
  endpoint: https://pve.example.com:8006/api2/json
  credentials:
    tokenId: {secretKeyRef: {name: pve, key: tokenId}}
    tokenSecret: {secretKeyRef: {name: pve, key: tokenSecret}}
`
	baseTemplate = `
apiVersion: hyperfleet.io/v1alpha1
kind: HypervisorMachineTemplate
metadata: {name: base, namespace: default}
spec:
  hypervisorClusterRef: {name: base}
  template: {proxmox: {templateId: 9000}}
  resources: {cpu: 2, memory: 4Gi}
`
	basePool = `
apiVersion: hyperfleet.io/v1alpha1
kind: RunnerPool
metadata: {name: base, namespace: default}
spec:
  templateRef: {name: base}
  workload: {type: github-actions, config: {github: {organization: example, labels: [self-hosted]}}}
`
	baseClaim = `
apiVersion: hyperfleet.io/v1alpha1
kind: MachineClaim
metadata: {name: base, namespace: default}
spec:
  templateRef: {name: base}
  workloadConfig: {type: generic, config: {generic: {source: nightly, command: [/usr/bin/make]}}}
`
	baseStandby = baseClaim + `
  standby: true
`
	baseLog = `
apiVersion: hyperfleet.io/v1alpha1
kind: RunnerLog
metadata: {name: base, namespace: default}
spec: {claim: linux-x7k2p}
`
	baseRegistration = `
apiVersion: hyperfleet.io/v1alpha1
kind: DNSRegistration
metadata: {name: base}
spec:
  claim: {namespace: ci, name: linux-x7k2p, uid: 6a8f6a0e-2c39-4d57-9b1d-0c6a7d0f3a11}
  hypervisorCluster: base
  fqdn: linux-x7k2p.ci.example.com
  addresses: [192.0.2.17]
`
	baseBatch = `
apiVersion: hyperfleet.io/v1alpha1
kind: RunnerJobBatch
metadata: {name: base, namespace: default}
spec: {jobs: [{platform: github-actions, id: "1", state: Queued}]}
`
	baseJob = `
apiVersion: hyperfleet.io/v1alpha1
kind: RunnerJob
metadata: {name: base, namespace: default}
spec: {platform: github-actions, id: "1", state: Queued}
`
)

// removed is the value of a field that a change removes.
type removed struct{}

// change is a set of fields by their dotted paths, with their new values.
type change map[string]any

// apply returns a copy of the object with the change.
func (c change) apply(t testing.TB, base string) *unstructured.Unstructured {
	t.Helper()

	object := parseObject(t, base)

	for path, value := range c {
		fields := strings.Split(path, ".")
		if _, gone := value.(removed); gone {
			unstructured.RemoveNestedField(object.Object, fields...)

			continue
		}

		if err := unstructured.SetNestedField(object.Object, runtime.DeepCopyJSONValue(value), fields...); err != nil {
			t.Fatalf("set %s: %v", path, err)
		}
	}

	return object
}

// anyMap and list are short names for parts of unstructured objects.
type (
	anyMap = map[string]any
	list   = []any
)

// newSecretRef returns a value that refers to a Secret.
func newSecretRef(name, key string) anyMap {
	return anyMap{"secretKeyRef": anyMap{"name": name, "key": key}}
}

// newItems returns n items.
func newItems(n int, item func(int) string) list {
	items := make(list, n)
	for i := range items {
		items[i] = item(i)
	}

	return items
}
