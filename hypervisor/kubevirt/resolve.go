// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// Resolve finds the template; see hypervisor.Provider. An image can't be looked up from
// here: KubeVirt says so when it can't pull it. What the credentials do not suffice to
// see is taken to be there.
func (p *Provider) Resolve(
	ctx context.Context, ref hypervisor.TemplateRef, want hypervisor.Shape,
) ([]hypervisor.Template, error) {
	if err := p.fits(ctx, want, hypervisor.Rejected); err != nil {
		return nil, err
	}

	found, err := p.source(ctx, ref, want)
	if err != nil {
		return nil, err
	}

	if err := p.hasStorage(ctx, found.Storage); err != nil {
		return nil, err
	}

	if err := p.hasNetwork(ctx, cmp.Or(want.Bridge, p.config.DefaultNetwork)); err != nil {
		return nil, err
	}

	if want.TPM {
		return nil, hypervisor.Errorf(hypervisor.Rejected, "TPMUnsupported",
			"machines on KubeVirt are given no TPM: KubeVirt has none whose endorsement key is certified by an authority that "+
				"outlives the machine: use attestation method join-token")
	}

	if want.VLAN != 0 {
		return nil, hypervisor.Errorf(hypervisor.Rejected, "VLANUnsupported",
			"a VLAN is a matter of the NetworkAttachmentDefinition on KubeVirt: name one with it, and leave network.vlan out")
	}

	return []hypervisor.Template{found}, nil
}

// source finds what the first disk is made from.
func (p *Provider) source(ctx context.Context, ref hypervisor.TemplateRef, want hypervisor.Shape) (hypervisor.Template, error) {
	found := hypervisor.Template{Name: ref.Name, Storage: cmp.Or(want.Storage, p.config.DefaultStorage), Shared: true}

	switch ref.Kind {
	case hypervisor.TemplateImage:
		// A containerDisk is shared and read only; what a machine writes is kept beside it.
		found.Storage = ""

		if want.Disk > 0 {
			return found, hypervisor.Errorf(hypervisor.Rejected, "DiskUnsupported",
				"resources.disk: a containerDisk has the size of its image: leave it out, or use a dataSource")
		}

		return found, nil
	case hypervisor.TemplateVolume:
		return p.volume(ctx, ref, want, found)
	case hypervisor.TemplateDataSource, "":
		source := &unstructured.Unstructured{}
		source.SetGroupVersionKind(dataSourceKind())

		return found, p.there(ctx, p.namespaceOf(ref), ref.Name, source)
	default:
		return found, hypervisor.Errorf(hypervisor.Rejected, "TemplateInvalid",
			"there are no templates of kind %q on KubeVirt", ref.Kind)
	}
}

// volume finds a PersistentVolumeClaim and makes sure that its disk is not too large.
func (p *Provider) volume(
	ctx context.Context, ref hypervisor.TemplateRef, want hypervisor.Shape, found hypervisor.Template,
) (hypervisor.Template, error) {
	var claim corev1.PersistentVolumeClaim
	if err := p.there(ctx, p.namespaceOf(ref), ref.Name, &claim); err != nil {
		return found, err
	}

	found.DiskBytes = claim.Spec.Resources.Requests.Storage().Value()
	if has := claim.Status.Capacity.Storage().Value(); has > 0 {
		found.DiskBytes = has
	}

	if want.Disk > 0 && want.Disk < found.DiskBytes {
		return found, hypervisor.Errorf(hypervisor.Rejected, "DiskTooSmall",
			"resources.disk is %d MiB, the disk of PersistentVolumeClaim %s is %d MiB: disks only grow",
			want.Disk>>20, ref.Name, found.DiskBytes>>20)
	}

	return found, nil
}

func (p *Provider) hasStorage(ctx context.Context, class string) error {
	if class == "" {
		return nil
	}

	return p.there(ctx, "", class, &storagev1.StorageClass{})
}

// hasNetwork makes sure that a NetworkAttachmentDefinition, written as name or
// namespace/name as Multus does, is there.
func (p *Provider) hasNetwork(ctx context.Context, network string) error {
	if network == "" {
		return nil
	}

	namespace, name, ok := strings.Cut(network, "/")
	if !ok {
		namespace, name = p.config.Namespace, network
	}

	attachment := &unstructured.Unstructured{}
	attachment.SetGroupVersionKind(attachmentKind())

	return p.there(ctx, namespace, name, attachment)
}

// there makes sure that an object is there, as far as it may be seen.
func (p *Provider) there(ctx context.Context, namespace, name string, obj client.Object) error {
	ctx, cancel := p.in(ctx)
	defer cancel()

	key := client.ObjectKey{Namespace: namespace, Name: name}
	kind := kindOf(obj)

	switch err := p.api.Get(ctx, key, obj); {
	case err == nil, apierrors.IsForbidden(err):
		return nil
	case apierrors.IsNotFound(err):
		return &hypervisor.Error{
			Kind: hypervisor.NotFound, Reason: kind.Kind + "NotFound",
			Message: fmt.Sprintf("there is no %s %s: create it, or correct the template",
				kind.Kind, strings.TrimPrefix(key.String(), "/")),
			Err: err,
		}
	default:
		return explain(fmt.Sprintf("read %s %s", kind.Kind, key), false, err)
	}
}

func kindOf(obj client.Object) schema.GroupKind {
	switch obj.(type) {
	case *corev1.PersistentVolumeClaim:
		return schema.GroupKind{Kind: "PersistentVolumeClaim"}
	case *storagev1.StorageClass:
		return schema.GroupKind{Kind: "StorageClass"}
	default:
		return obj.GetObjectKind().GroupVersionKind().GroupKind()
	}
}
