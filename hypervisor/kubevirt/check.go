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

// permission is the verbs that the provider uses for one resource type.
type permission struct {
	group, resource string
	verbs           []string
}

// requiredPermissions returns the permissions that the provider needs in the machines' namespace.
func requiredPermissions() []permission {
	return []permission{
		{"kubevirt.io", "virtualmachines", []string{"get", "list", "watch", "create", "patch", "delete"}},
		{"kubevirt.io", "virtualmachineinstances", []string{"get", "list", "watch", "delete"}},
		{"", "secrets", []string{"get", "list", "create", "patch", "delete"}},
	}
}

// Check checks the connection and the permissions; see hypervisor.Provider. It checks each permission by
// a SelfSubjectAccessReview (authorization.k8s.io/v1). The error names all missing permissions.
func (p *Provider) Check(ctx context.Context) (hypervisor.Info, error) {
	info := hypervisor.Info{Product: product}

	if err := p.checkPermissions(ctx); err != nil {
		return info, err
	}

	if err := p.checkReady(ctx); err != nil {
		return info, err
	}

	var err error
	if info.Version, err = p.readVersion(ctx, &info); err != nil {
		return info, err
	}

	nodes, mayList, err := p.listNodes(ctx)
	if err != nil {
		return info, err
	}

	info.Nodes, info.NodesHidden = nodes, !mayList

	if !mayList {
		info.Warnings = append(info.Warnings,
			"the capacity is unknown because the credentials do not permit listing nodes: allow `list` on nodes")
	}

	if _, err := p.cache.start(); err != nil {
		return info, err
	}

	return info, nil
}

// checkReady returns an error if the machines' namespace does not exist or is being deleted, or if
// KubeVirt's kinds do not exist.
func (p *Provider) checkReady(ctx context.Context) error {
	ctx, cancel := p.withCallTimeout(ctx)
	defer cancel()

	var namespace corev1.Namespace

	err := p.api.Get(ctx, p.objectKey(p.config.Namespace), &namespace)
	if apierrors.IsNotFound(err) {
		return hypervisor.Errorf(hypervisor.Rejected, "NamespaceNotFound",
			"namespace %q for machines does not exist: create it, or correct spec.kubevirt.namespace", p.config.Namespace)
	}

	if err != nil && !apierrors.IsForbidden(err) {
		return wrapAPIError("read namespace "+p.config.Namespace, readCall, err)
	}

	if namespace.DeletionTimestamp != nil {
		return hypervisor.Errorf(hypervisor.Rejected, "NamespaceTerminating",
			"namespace %q for machines is being deleted", p.config.Namespace)
	}

	// A list for a claim that does not exist shows whether the API server has the kind.
	_, err = p.findMachine(ctx, hypervisor.Owner{UID: "nobody"})
	if hypervisor.Is(err, hypervisor.NotFound) {
		return hypervisor.Errorf(hypervisor.Rejected, "KubeVirtMissing",
			"the API server does not have the kind VirtualMachine of kubevirt.io/v1: install KubeVirt")
	}

	return err
}

// checkPermissions returns an error that names all missing permissions.
func (p *Provider) checkPermissions(ctx context.Context) error {
	var missing []string

	for _, required := range requiredPermissions() {
		var verbs []string

		for _, verb := range required.verbs {
			ok, err := p.isAllowed(ctx, required, verb)
			if err != nil {
				return err
			}

			if !ok {
				verbs = append(verbs, verb)
			}
		}

		if len(verbs) > 0 {
			missing = append(missing, fmt.Sprintf("%s on %s", strings.Join(verbs, ", "), resourceName(required)))
		}
	}

	if len(missing) == 0 {
		return nil
	}

	return hypervisor.Errorf(hypervisor.Rejected, "PermissionsMissing",
		"the credentials lack permissions in namespace %q: %s: add the permissions to their Role",
		p.config.Namespace, strings.Join(missing, "; "))
}

func resourceName(p permission) string {
	if p.group == "" {
		return p.resource
	}

	return p.resource + "." + p.group
}

// isAllowed reports whether the credentials have the permission for the verb.
func (p *Provider) isAllowed(ctx context.Context, required permission, verb string) (bool, error) {
	ctx, cancel := p.withCallTimeout(ctx)
	defer cancel()

	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: p.config.Namespace, Group: required.group, Resource: required.resource, Verb: verb,
		},
	}}

	if err := p.api.Create(ctx, review); err != nil {
		return false, wrapAPIError("review permissions", readCall, err)
	}

	return review.Status.Allowed, nil
}

// readVersion returns the version of the installed KubeVirt. It returns "" if the credentials do not
// permit listing KubeVirt objects. It appends problems with the KubeVirt object to info.Warnings.
func (p *Provider) readVersion(ctx context.Context, info *hypervisor.Info) (string, error) {
	ctx, cancel := p.withCallTimeout(ctx)
	defer cancel()

	var all virtv1.KubeVirtList

	switch err := p.api.List(ctx, &all); {
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err):
		return "", nil
	case err != nil:
		return "", wrapAPIError("read the version of KubeVirt", readCall, err)
	case len(all.Items) == 0:
		info.Warnings = append(info.Warnings,
			"no KubeVirt object exists: KubeVirt's kinds are installed, but KubeVirt may not be")

		return "", nil
	}

	kv := &all.Items[0]
	if kv.Status.Phase != virtv1.KubeVirtPhaseDeployed {
		info.Warnings = append(info.Warnings,
			fmt.Sprintf("KubeVirt is in the phase %q, want %q", kv.Status.Phase, virtv1.KubeVirtPhaseDeployed))
	}

	return kv.Status.ObservedKubeVirtVersion, nil
}
