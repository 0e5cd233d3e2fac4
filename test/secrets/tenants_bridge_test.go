// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package secrets_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bridgev1 "github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
)

// A bridge makes the operator write to its DPUCluster. So a user can create a bridge for a DPUCluster in
// another namespace only with the permission to patch this DPUCluster. In the bridge's own namespace users
// need no further permission.
func TestBridgesOfOthersDPUClusters(t *testing.T) {
	t.Parallel()

	own, other := env.Namespace(t), env.Namespace(t)
	grant := func(namespace, group, resource string, verbs ...string) {
		meta := metav1.ObjectMeta{Namespace: namespace, Name: own + "-" + resource}
		env.Create(t, &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs,
		}}})
		env.Create(t, &rbacv1.RoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: own}},
		})
	}
	grant(own, bridgev1.GroupVersion.Group, "dpfhcpbridges", "create")

	user, err := client.New(env.User(t, "ada", own), client.Options{Scheme: env.Scheme})
	if err != nil {
		t.Fatal(err)
	}

	try := func(what, namespace string, made bool) {
		t.Helper()

		bridge := &bridgev1.DPFHCPBridge{
			ObjectMeta: metav1.ObjectMeta{Namespace: own, Name: "bridge"},
			Spec: bridgev1.DPFHCPBridgeSpec{
				DPUClusterRef: bridgev1.ObjectReference{Namespace: namespace, Name: "dpus"}, BaseDomain: "clusters.example.com",
				OCPReleaseImage: "quay.io/ocp/release:4.15.0", SSHKeySecretRef: bridgev1.LocalObjectReference{Name: "s"},
				PullSecretRef: bridgev1.LocalObjectReference{Name: "s"}, EtcdStorageClass: storageClass, ClusterType: "dpf-dev",
				ControlPlaneAvailabilityPolicy: bridgev1.SingleReplica, InfrastructureAvailabilityPolicy: bridgev1.SingleReplica,
			},
		}

		var last error

		// The API server applies policies and RBAC with a delay.
		err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			last = user.Create(ctx, bridge.DeepCopy(), client.DryRunAll)
			refused := apierrors.IsForbidden(last) && strings.Contains(fmt.Sprint(last), "DPUClusterNotAllowed: ada may not patch DPUCluster "+other+"/dpus")

			return made && last == nil || !made && refused, nil
		})
		if err != nil {
			t.Errorf("%s: %v", what, last)
		}
	}

	try("another namespace", other, false)
	try("the own namespace", own, true)
	grant(other, hypershift.DPUClusterKind().Group, "dpuclusters", "patch")
	try("another namespace, with the permission to patch the DPUCluster", other, true)
}
