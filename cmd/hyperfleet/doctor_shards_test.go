// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/shards"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// Several operators divide the namespaces. The doctor reports a namespace that two of them serve, and one that none
// serves.
func (i installation) testShards(t *testing.T) {
	sample := func(namespace string) {
		t.Helper()

		template := &v1alpha1.HypervisorMachineTemplate{}
		(&seeder{t: t}).sample("hypervisormachinetemplate-static.yaml", template)
		template.Namespace = namespace
		i.create(t, template)
	}
	finding := func() string {
		t.Helper()

		return findingsOf(i.runDoctor(t, i.Config), "operator of runners")
	}

	first, second := i.Namespace(t), i.Namespace(t)
	sample(first)
	sample(second)

	a := i.newLease(t, "hyperfleet-runners.a", "one", time.Second)
	a.Labels = shards.NewLabels([]string{first})
	must.Do(t, i.Client.Update(t.Context(), a))

	if got, want := finding(), "problem no running operator serves namespace "+second+": add the namespace to namespaces"; !strings.HasPrefix(got, want) {
		t.Errorf("%s, want %s", got, want)
	}

	b := i.newLease(t, "hyperfleet-runners.b", "two", time.Second)
	b.Labels = shards.NewLabels([]string{second})
	must.Do(t, i.Client.Update(t.Context(), b))

	if got := finding(); got != "ok 2 operators share the namespaces" {
		t.Error(got)
	}

	b.Labels = shards.NewLabels([]string{first, second})
	must.Do(t, i.Client.Update(t.Context(), b))

	if got, want := finding(), "problem two operators run the area in namespace "+first+", one with Lease hyperfleet-system/hyperfleet-runners.a and "+
		"two with Lease hyperfleet-system/hyperfleet-runners.b: remove the namespace from the namespaces"; !strings.HasPrefix(got, want) {
		t.Errorf("%s, want %s", got, want)
	}

	// These operators need other roles than one that serves all namespaces.
	roles := func() string {
		t.Helper()

		return findingsOf(i.runDoctor(t, i.Config), "RBAC roles of runners")
	}

	defer i.Apply(t, "../../deploy/rbac", "../../deploy/shards/roles.yaml")

	must.Do(t, i.Client.Delete(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "hyperfleet-runners"}}))

	missing := "problem ClusterRole hyperfleet-shard-namespace is missing: run `kubectl apply --server-side -f deploy/shards/roles.yaml`"
	if got := roles(); !strings.HasPrefix(got, missing) {
		t.Errorf("%s, want %s", got, missing)
	}

	i.Apply(t, "../../deploy/shards/roles.yaml")

	const match = "ok all match this version of hyperfleet"
	if got := roles(); got != match {
		t.Error(got)
	}

	// The operators have not started yet.
	must.Do(t, i.Client.Delete(t.Context(), a))
	must.Do(t, i.Client.Delete(t.Context(), b))

	if got := roles(); got != match {
		t.Errorf("before an operator has started: %s", got)
	}
}
