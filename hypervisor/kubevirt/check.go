// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	virtv1 "kubevirt.io/api/core/v1"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

const product = "KubeVirt"

// permission is what the provider does to one resource.
type permission struct {
	group, resource string
	verbs           []string
}

// permissions are what making machines takes, in the machines' namespace.
func permissions() []permission {
	return []permission{
		{"kubevirt.io", "virtualmachines", []string{"get", "list", "watch", "create", "patch", "delete"}},
		{"kubevirt.io", "virtualmachineinstances", []string{"get", "list", "watch", "delete"}},
		{"", "secrets", []string{"get", "list", "create", "patch", "delete"}},
	}
}

// Check connects and looks; see hypervisor.Provider. The permissions are asked for by
// SelfSubjectAccessReviews (authorization.k8s.io/v1), and each that is missing is named.
func (p *Provider) Check(ctx context.Context) (hypervisor.Info, error) {
	info := hypervisor.Info{Product: product}

	if err := p.allowed(ctx); err != nil {
		return info, err
	}

	if err := p.ready(ctx); err != nil {
		return info, err
	}

	var err error
	if info.Version, err = p.version(ctx, &info); err != nil {
		return info, err
	}

	nodes, seen, err := p.nodes(ctx)
	if err != nil {
		return info, err
	}

	info.Nodes, info.NodesHidden = nodes, !seen

	if !seen {
		info.Warnings = append(info.Warnings,
			"nodes can't be seen, so capacity is unknown: allow `list` on nodes to have it reported")
	}

	if _, err := p.view.start(); err != nil {
		return info, err
	}

	return info, nil
}

// ready makes sure that the namespace and KubeVirt's kinds are there.
func (p *Provider) ready(ctx context.Context) error {
	ctx, cancel := p.in(ctx)
	defer cancel()

	var namespace corev1.Namespace

	err := p.api.Get(ctx, p.key(p.config.Namespace), &namespace)
	if apierrors.IsNotFound(err) {
		return hypervisor.Errorf(hypervisor.Rejected, "NamespaceNotFound",
			"there is no namespace %q for machines: create it, or correct spec.kubevirt.namespace", p.config.Namespace)
	}

	if err != nil && !apierrors.IsForbidden(err) {
		return explain("read namespace "+p.config.Namespace, false, err)
	}

	if namespace.DeletionTimestamp != nil {
		return hypervisor.Errorf(hypervisor.Rejected, "NamespaceTerminating", "namespace %q is being deleted", p.config.Namespace)
	}

	_, err = p.find(ctx, hypervisor.Owner{UID: "nobody"})
	if hypervisor.Is(err, hypervisor.NotFound) {
		return hypervisor.Errorf(hypervisor.Rejected, "KubeVirtMissing",
			"the API server does not know VirtualMachines of kubevirt.io/v1: install KubeVirt")
	}

	return err
}

// allowed names the permissions that are missing.
func (p *Provider) allowed(ctx context.Context) error {
	var missing []string

	for _, need := range permissions() {
		var verbs []string

		for _, verb := range need.verbs {
			ok, err := p.may(ctx, need, verb)
			if err != nil {
				return err
			}

			if !ok {
				verbs = append(verbs, verb)
			}
		}

		if len(verbs) > 0 {
			missing = append(missing, fmt.Sprintf("%s on %s", strings.Join(verbs, ", "), resourceName(need)))
		}
	}

	if len(missing) == 0 {
		return nil
	}

	return hypervisor.Errorf(hypervisor.Rejected, "PermissionsMissing",
		"in namespace %q the credentials lack %s: give them a Role with these",
		p.config.Namespace, strings.Join(missing, "; "))
}

func resourceName(p permission) string {
	if p.group == "" {
		return p.resource
	}

	return p.resource + "." + p.group
}

func (p *Provider) may(ctx context.Context, need permission, verb string) (bool, error) {
	ctx, cancel := p.in(ctx)
	defer cancel()

	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: p.config.Namespace, Group: need.group, Resource: need.resource, Verb: verb,
		},
	}}

	if err := p.api.Create(ctx, review); err != nil {
		return false, explain("review permissions", false, err)
	}

	return review.Status.Allowed, nil
}

// version is that of the KubeVirt that runs, if its object may be seen. What is wrong
// with it is a warning.
func (p *Provider) version(ctx context.Context, info *hypervisor.Info) (string, error) {
	ctx, cancel := p.in(ctx)
	defer cancel()

	var all virtv1.KubeVirtList

	switch err := p.api.List(ctx, &all); {
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err):
		return "", nil
	case err != nil:
		return "", explain("read KubeVirt's version", false, err)
	case len(all.Items) == 0:
		info.Warnings = append(info.Warnings, "there is no KubeVirt object: KubeVirt's kinds are there, KubeVirt may not be")

		return "", nil
	}

	kv := &all.Items[0]
	if kv.Status.Phase != virtv1.KubeVirtPhaseDeployed {
		info.Warnings = append(info.Warnings, fmt.Sprintf("KubeVirt is %q, not %q", kv.Status.Phase, virtv1.KubeVirtPhaseDeployed))
	}

	return kv.Status.ObservedKubeVirtVersion, nil
}
