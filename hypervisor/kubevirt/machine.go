// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	virtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// Names inside a VirtualMachine.
const (
	rootDisk   = "root"
	seedDisk   = "cloud-init"
	defaultNet = "default"
	// seedLabel is the label by which cloud-init finds the disk with its data.
	seedLabel = "cidata"
)

// build makes the VirtualMachine of a spec: halted, owned, and without its cloud-init Secret.
func (p *Provider) build(spec hypervisor.MachineSpec, now time.Time) (*virtv1.VirtualMachine, error) {
	labels, annotations, err := p.id.marks(spec.ID, spec.Owner, p.config.Tags, now)
	if err != nil {
		return nil, err
	}

	name := nameOf(spec.Owner, spec.ID)
	halted := virtv1.RunStrategyHalted

	vm := &virtv1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.config.Namespace, Name: name, Labels: labels, Annotations: annotations,
		},
		Spec: virtv1.VirtualMachineSpec{
			RunStrategy: &halted,
			Template: &virtv1.VirtualMachineInstanceTemplateSpec{
				// The instance carries the ownership too: an instance whose machine was taken away
				// is known for ours.
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: annotations},
				Spec:       p.instance(spec, name),
			},
		},
	}

	root, template, err := p.root(spec, name)
	if err != nil {
		return nil, err
	}

	vm.Spec.Template.Spec.Volumes = append([]virtv1.Volume{root}, vm.Spec.Template.Spec.Volumes...)
	vm.Spec.DataVolumeTemplates = template

	return vm, nil
}

// instance is the machine proper, but for its first disk.
func (p *Provider) instance(spec hypervisor.MachineSpec, name string) virtv1.VirtualMachineInstanceSpec {
	memory := resource.NewQuantity(spec.Shape.Memory, resource.BinarySI)
	// A machine that is to go is not asked to shut down: its job is over, or ends with it.
	grace := int64(0)
	// A machine that can move to another node when its own is drained does so; one that
	// can't does not hold up the drain.
	eviction := virtv1.EvictionStrategyLiveMigrateIfPossible
	iface, net := p.attach(spec.Shape.Bridge)

	return virtv1.VirtualMachineInstanceSpec{
		Hostname:                      spec.Hostname,
		TerminationGracePeriodSeconds: &grace,
		EvictionStrategy:              &eviction,
		NodeSelector:                  p.config.NodeSelector,
		Affinity:                      p.affinity(),
		Domain: virtv1.DomainSpec{
			CPU:    &virtv1.CPU{Cores: uint32(spec.Shape.CPU)}, //nolint:gosec // the API bounds it
			Memory: &virtv1.Memory{Guest: memory},
			Devices: virtv1.Devices{
				Rng: &virtv1.Rng{},
				Disks: []virtv1.Disk{
					{Name: rootDisk, DiskDevice: virtv1.DiskDevice{Disk: &virtv1.DiskTarget{Bus: virtv1.DiskBusVirtio}}},
					{Name: seedDisk, DiskDevice: virtv1.DiskDevice{Disk: &virtv1.DiskTarget{Bus: virtv1.DiskBusVirtio}}},
				},
				Interfaces: []virtv1.Interface{iface},
			},
		},
		Networks: []virtv1.Network{net},
		Volumes: []virtv1.Volume{{Name: seedDisk, VolumeSource: virtv1.VolumeSource{
			Secret: &virtv1.SecretVolumeSource{SecretName: name, VolumeLabel: seedLabel},
		}}},
	}
}

// attach gives the machine's network device: on the NetworkAttachmentDefinition, or on
// the cluster's default one, or on the pod network.
func (p *Provider) attach(attachment string) (virtv1.Interface, virtv1.Network) {
	attachment = cmp.Or(attachment, p.config.DefaultNetwork)
	if attachment == "" {
		return virtv1.Interface{
			Name: defaultNet, InterfaceBindingMethod: virtv1.InterfaceBindingMethod{Masquerade: &virtv1.InterfaceMasquerade{}},
		}, *virtv1.DefaultPodNetwork()
	}

	return virtv1.Interface{
			Name: defaultNet, InterfaceBindingMethod: virtv1.InterfaceBindingMethod{Bridge: &virtv1.InterfaceBridge{}},
		}, virtv1.Network{
			Name: defaultNet, NetworkSource: virtv1.NetworkSource{Multus: &virtv1.MultusNetwork{NetworkName: attachment}},
		}
}

// affinity keeps machines on the nodes that may be used.
func (p *Provider) affinity() *corev1.Affinity {
	if len(p.config.Nodes) == 0 {
		return nil
	}

	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
				Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: p.config.Nodes,
			}}}},
		},
	}}
}

// root is the machine's first disk, with the DataVolume that it is made as if it is one.
func (p *Provider) root(spec hypervisor.MachineSpec, name string) (virtv1.Volume, []virtv1.DataVolumeTemplateSpec, error) {
	from := spec.Template
	volume := virtv1.Volume{Name: rootDisk}

	if from.Kind == hypervisor.TemplateImage {
		volume.ContainerDisk = &virtv1.ContainerDiskSource{Image: from.Name, ImagePullSecret: from.PullSecret}

		return volume, nil, nil
	}

	template := virtv1.DataVolumeTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       cdiv1.DataVolumeSpec{Storage: p.storage(spec.Shape)},
	}

	switch from.Kind {
	case hypervisor.TemplateDataSource, "":
		namespace := p.namespaceOf(from)
		template.Spec.SourceRef = &cdiv1.DataVolumeSourceRef{
			Kind: cdiv1.DataVolumeDataSource, Namespace: &namespace, Name: from.Name,
		}
	case hypervisor.TemplateVolume:
		template.Spec.Source = &cdiv1.DataVolumeSource{
			PVC: &cdiv1.DataVolumeSourcePVC{Namespace: p.namespaceOf(from), Name: from.Name},
		}
	default:
		return virtv1.Volume{}, nil, hypervisor.Errorf(hypervisor.Rejected, "TemplateInvalid",
			"make machine from a %s: KubeVirt has no such templates", from.Kind)
	}

	volume.DataVolume = &virtv1.DataVolumeSource{Name: name}

	return volume, []virtv1.DataVolumeTemplateSpec{template}, nil
}

func (p *Provider) namespaceOf(ref hypervisor.TemplateRef) string {
	return cmp.Or(ref.Namespace, p.config.Namespace)
}

// storage of a machine's first disk; CDI takes the template's size where none is given.
func (p *Provider) storage(shape hypervisor.Shape) *cdiv1.StorageSpec {
	storage := &cdiv1.StorageSpec{}

	class := cmp.Or(shape.Storage, p.config.DefaultStorage)
	if class != "" {
		storage.StorageClassName = &class
	}

	if shape.Disk > 0 {
		storage.Resources.Requests = corev1.ResourceList{
			corev1.ResourceStorage: *resource.NewQuantity(shape.Disk, resource.BinarySI),
		}
	}

	return storage
}
