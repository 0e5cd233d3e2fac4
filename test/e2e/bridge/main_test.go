// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/sim/hypershift/crds"
	"github.com/hyperfleet/hyperfleet/test/exe"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

const (
	// deploy is the folder of the manifests.
	deploy  = "../../../deploy/"
	account = "hyperfleet-bridge"
	system  = "hyperfleet-system"
	// nodeIP is the address of the management cluster's only node.
	nodeIP = "10.0.0.5"
)

var (
	// env is the API server of all tests.
	env *kube.Env
	// binary is the path of the operator's program.
	binary string
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	return exe.RunWith(func(dir string) int {
		binary = filepath.Join(dir, "hyperfleet")

		return kube.Run(m, &env, kube.WithCRDs(deploy+"base/namespace.yaml", deploy+"crds", deploy+"rbac/bridge.yaml"),
			kube.WithControllerManager(), kube.WithSetup(createPrerequisites))
	}, "cmd/hyperfleet")
}

// createPrerequisites creates what a management cluster has before its first bridge.
func createPrerequisites(ctx context.Context, config *rest.Config) error {
	if err := crds.Install(ctx, config); err != nil {
		return err
	}

	objects := []client.Object{
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: account},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: account},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: system, Name: account}},
		},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "management-1"}},
	}
	for _, name := range []string{"ceph-rbd-retain", "ceph-rbd", "standard"} {
		objects = append(objects, &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: "rbd.csi.ceph.com",
		})
	}

	for _, object := range objects {
		if err := env.Client.Create(ctx, object); err != nil {
			return fmt.Errorf("create %T %s: %w", object, object.GetName(), err)
		}
	}

	node, _ := objects[1].(*corev1.Node)
	node.Status = corev1.NodeStatus{
		Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeIP}},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
	}

	if err := env.Client.Status().Update(ctx, node); err != nil {
		return fmt.Errorf("set node status: %w", err)
	}

	return nil
}
