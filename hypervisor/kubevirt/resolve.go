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

// Resolve finds the template; see hypervisor.Provider. It cannot check that an image exists. KubeVirt
// reports an error if it cannot pull the image. Resolve assumes that an object exists if the
// credentials do not permit it to read the object.
func (p *Provider) Resolve(
	ctx context.Context, ref hypervisor.TemplateRef, shape hypervisor.Shape,
) ([]hypervisor.Template, error) {
	if err := p.checkNodeSize(ctx, shape, hypervisor.Rejected); err != nil {
		return nil, err
	}

	if err := p.checkDevices(ctx, shape); err != nil {
		return nil, err
	}

	found, err := p.resolveSource(ctx, ref, shape)
	if err != nil {
		return nil, err
	}

	if err := p.checkStorage(ctx, found.Storage); err != nil {
		return nil, err
	}

	if err := p.checkNetwork(ctx, cmp.Or(shape.Bridge, p.config.DefaultNetwork)); err != nil {
		return nil, err
	}

	if shape.TPM {
		return nil, hypervisor.Errorf(hypervisor.Rejected, "TPMUnsupported",
			"TPM is not supported on KubeVirt, because no certificate authority that outlives the machine certifies the "+
				"endorsement key of a KubeVirt TPM: use attestation method join-token")
	}

	if shape.VLAN != 0 {
		return nil, hypervisor.Errorf(hypervisor.Rejected, "VLANUnsupported",
			"network.vlan is not supported on KubeVirt: remove it, and use a NetworkAttachmentDefinition that sets the VLAN")
	}

	return []hypervisor.Template{found}, nil
}

// resolveSource finds the object that the first disk is created from.
func (p *Provider) resolveSource(
	ctx context.Context, ref hypervisor.TemplateRef, shape hypervisor.Shape,
) (hypervisor.Template, error) {
	found := hypervisor.Template{Name: ref.Name, Storage: cmp.Or(shape.Storage, p.config.DefaultStorage), Shared: true}

	switch ref.Kind {
	case hypervisor.TemplateImage:
		// A containerDisk is shared and read-only. KubeVirt keeps the writes of a machine separately.
		found.Storage = ""

		if shape.Disk > 0 {
			return found, hypervisor.Errorf(hypervisor.Rejected, "DiskUnsupported",
				"resources.disk is not supported for a containerDisk, which has the size of its image: "+
					"remove resources.disk, or use a dataSource")
		}

		return found, nil
	case hypervisor.TemplateVolume:
		return p.resolveVolume(ctx, ref, shape, found)
	case hypervisor.TemplateDataSource, "":
		source := &unstructured.Unstructured{}
		source.SetGroupVersionKind(dataSourceGVK())

		err := p.checkExists(ctx, p.templateNamespace(ref), ref.Name, source)
		found.OS = parsePreference(source.GetLabels())

		return found, err
	default:
		return found, hypervisor.Errorf(hypervisor.Rejected, "TemplateInvalid",
			"KubeVirt has no templates of kind %q", ref.Kind)
	}
}

// resolveVolume finds a PersistentVolumeClaim and verifies that its disk is not larger than the
// shape's.
func (p *Provider) resolveVolume(
	ctx context.Context, ref hypervisor.TemplateRef, shape hypervisor.Shape, found hypervisor.Template,
) (hypervisor.Template, error) {
	var claim corev1.PersistentVolumeClaim
	if err := p.checkExists(ctx, p.templateNamespace(ref), ref.Name, &claim); err != nil {
		return found, err
	}

	found.OS = parsePreference(claim.Labels)
	found.DiskBytes = claim.Spec.Resources.Requests.Storage().Value()
	if capacity := claim.Status.Capacity.Storage().Value(); capacity > 0 {
		found.DiskBytes = capacity
	}

	if shape.Disk > 0 && shape.Disk < found.DiskBytes {
		return found, hypervisor.Errorf(hypervisor.Rejected, "DiskTooSmall",
			"resources.disk is %d MiB, but the disk of PersistentVolumeClaim %s is %d MiB: a disk cannot shrink",
			shape.Disk>>20, ref.Name, found.DiskBytes>>20)
	}

	return found, nil
}

// labelPreference names the preference of machines that are created from an object
// (https://kubevirt.io/user-guide/user_workloads/instancetypes/#inferring-defaults-from-a-volume).
const labelPreference = "instancetype.kubevirt.io/default-preference"

// parsePreference returns the operating system of the preference in the labels of an object, and "" if there is none. The
// names are those of KubeVirt's common-instancetypes, for example windows.11.
func parsePreference(labels map[string]string) string {
	switch preference := labels[labelPreference]; {
	case preference == "":
		return ""
	case strings.HasPrefix(preference, "windows"):
		return hypervisor.OSWindows
	default:
		return hypervisor.OSLinux
	}
}

func (p *Provider) checkStorage(ctx context.Context, class string) error {
	if class == "" {
		return nil
	}

	return p.checkExists(ctx, "", class, &storagev1.StorageClass{})
}

// checkNetwork returns an error if the NetworkAttachmentDefinition does not exist. The notation is as
// in Multus: NAME or NAMESPACE/NAME.
func (p *Provider) checkNetwork(ctx context.Context, network string) error {
	if network == "" {
		return nil
	}

	namespace, name, ok := strings.Cut(network, "/")
	if !ok {
		namespace, name = p.config.Namespace, network
	}

	attachment := &unstructured.Unstructured{}
	attachment.SetGroupVersionKind(attachmentGVK())

	return p.checkExists(ctx, namespace, name, attachment)
}

// checkExists returns an error of kind NotFound if the object does not exist. It returns nil if the
// credentials do not permit reading the object.
func (p *Provider) checkExists(ctx context.Context, namespace, name string, obj client.Object) error {
	ctx, cancel := p.withCallTimeout(ctx)
	defer cancel()

	key := client.ObjectKey{Namespace: namespace, Name: name}
	kind := kindOf(obj)

	switch err := p.api.Get(ctx, key, obj); {
	case err == nil, apierrors.IsForbidden(err):
		return nil
	case apierrors.IsNotFound(err):
		return &hypervisor.Error{
			Kind: hypervisor.NotFound, Reason: kind.Kind + "NotFound",
			Message: fmt.Sprintf("%s %s does not exist: create it, or correct the template",
				kind.Kind, strings.TrimPrefix(key.String(), "/")),
			Err: err,
		}
	default:
		return wrapAPIError(fmt.Sprintf("read %s %s", kind.Kind, key), readCall, err)
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
