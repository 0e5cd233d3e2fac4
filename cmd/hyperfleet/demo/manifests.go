// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"fmt"
	"io/fs"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/deploy"
)

// serviceAccount is the operator's, and the name of the roles generated for it.
const serviceAccount = "hyperfleet-runners"

// manifests are the generated ones that a cluster needs for the operator.
func manifests() []fs.FS { return []fs.FS{deploy.CRDs, deploy.RBAC} }

// bindings give the operator's service account the generated roles, and nothing more.
func bindings() []client.Object {
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: serviceAccount}}
	role := func(kind string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: serviceAccount}
	}

	return []client.Object{
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: serviceAccount}, Subjects: subjects, RoleRef: role("ClusterRole"),
		},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: serviceAccount}, Subjects: subjects, RoleRef: role("Role"),
		},
	}
}

// create makes objects. One that is there already is an error, but for the namespace.
func (s *stack) create(ctx context.Context, objects ...client.Object) error {
	for _, obj := range objects {
		err := s.client.Create(ctx, obj)
		if _, ok := obj.(*corev1.Namespace); ok && apierrors.IsAlreadyExists(err) {
			continue
		}

		if err != nil {
			return fmt.Errorf("create %T %s: %w", obj, obj.GetName(), err)
		}
	}

	return nil
}
