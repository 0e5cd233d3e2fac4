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
	// seedLabel is the volume label by which cloud-init finds the disk with its data.
	seedLabel = "cidata"
)

// buildVM returns the VirtualMachine for the spec, with its ownership. The machine is halted, and its
// cloud-init Secret does not exist yet.
func (p *Provider) buildVM(spec hypervisor.MachineSpec, now time.Time) (*virtv1.VirtualMachine, error) {
	labels, annotations, err := p.identity.newMetadata(spec.ID, spec.Owner, spec.Network, p.config.Tags, now)
	if err != nil {
		return nil, err
	}

	name := hypervisor.MachineName(spec.Owner, spec.ID)
	halted := virtv1.RunStrategyHalted

	vm := &virtv1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.config.Namespace, Name: name, Labels: labels, Annotations: annotations,
		},
		Spec: virtv1.VirtualMachineSpec{
			RunStrategy: &halted,
			Template: &virtv1.VirtualMachineInstanceTemplateSpec{
				// The instance carries the ownership, too. So the provider recognizes its own instance
				// after somebody has deleted the machine.
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: annotations},
				Spec:       p.buildInstanceSpec(spec, name),
			},
		},
	}

	root, template, err := p.buildRootDisk(spec, name)
	if err != nil {
		return nil, err
	}

	vm.Spec.Template.Spec.Volumes = append([]virtv1.Volume{root}, vm.Spec.Template.Spec.Volumes...)
	vm.Spec.DataVolumeTemplates = template

	return vm, nil
}

// buildInstanceSpec returns the spec of the instance without the volume of its first disk.
func (p *Provider) buildInstanceSpec(spec hypervisor.MachineSpec, name string) virtv1.VirtualMachineInstanceSpec {
	memory := resource.NewQuantity(spec.Shape.Memory, resource.BinarySI)
	// The guest of a deleted machine needs no time to shut down. Its job has finished, or is to end
	// with the machine.
	grace := int64(0)
	// When its node is drained, a machine migrates if it can. A machine that cannot migrate does not
	// block the drain.
	eviction := virtv1.EvictionStrategyLiveMigrateIfPossible
	iface, net := p.buildNetwork(spec.Shape.Bridge)
	gpus, hostDevices := buildDevices(spec.Shape)

	return virtv1.VirtualMachineInstanceSpec{
		Hostname:                      spec.Hostname,
		TerminationGracePeriodSeconds: &grace,
		EvictionStrategy:              &eviction,
		NodeSelector:                  p.config.NodeSelector,
		Affinity:                      p.nodeAffinity(),
		Domain: virtv1.DomainSpec{
			CPU:    buildCPU(spec.Shape),
			Memory: &virtv1.Memory{Guest: memory},
			Devices: virtv1.Devices{
				Rng: &virtv1.Rng{},
				Disks: []virtv1.Disk{
					{Name: rootDisk, DiskDevice: virtv1.DiskDevice{Disk: &virtv1.DiskTarget{Bus: virtv1.DiskBusVirtio}}},
					{Name: seedDisk, DiskDevice: virtv1.DiskDevice{Disk: &virtv1.DiskTarget{Bus: virtv1.DiskBusVirtio}}},
				},
				Interfaces:  []virtv1.Interface{iface},
				GPUs:        gpus,
				HostDevices: hostDevices,
			},
		},
		Networks: []virtv1.Network{net},
		Volumes: []virtv1.Volume{{Name: seedDisk, VolumeSource: virtv1.VolumeSource{
			Secret: &virtv1.SecretVolumeSource{SecretName: name, VolumeLabel: seedLabel},
		}}},
	}
}

// buildCPU returns the CPU of the machine. With nested virtualization it is that of the node
// (https://kubevirt.io/user-guide/compute/nested_virtualization/).
func buildCPU(shape hypervisor.Shape) *virtv1.CPU {
	out := &virtv1.CPU{Cores: uint32(shape.CPU)} //nolint:gosec // the API limits the value
	if shape.Nested {
		out.Model = virtv1.CPUModeHostPassthrough
	}

	return out
}

// buildNetwork returns the machine's network device and its network. The network is the
// NetworkAttachmentDefinition, or the cluster's default if the argument is empty, or the pod network
// if the cluster has no default.
func (p *Provider) buildNetwork(attachment string) (virtv1.Interface, virtv1.Network) {
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

// nodeAffinity restricts machines to the configured nodes. It returns nil if no nodes are configured.
func (p *Provider) nodeAffinity() *corev1.Affinity {
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

// buildRootDisk returns the volume of the machine's first disk. If the disk is a DataVolume, it also
// returns the template of the DataVolume.
func (p *Provider) buildRootDisk(
	spec hypervisor.MachineSpec, name string,
) (virtv1.Volume, []virtv1.DataVolumeTemplateSpec, error) {
	source := spec.Template
	volume := virtv1.Volume{Name: rootDisk}

	if source.Kind == hypervisor.TemplateImage {
		volume.ContainerDisk = &virtv1.ContainerDiskSource{Image: source.Name, ImagePullSecret: source.PullSecret}

		return volume, nil, nil
	}

	template := virtv1.DataVolumeTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       cdiv1.DataVolumeSpec{Storage: p.buildStorage(spec.Shape)},
	}

	switch source.Kind {
	case hypervisor.TemplateDataSource, "":
		namespace := p.templateNamespace(source)
		template.Spec.SourceRef = &cdiv1.DataVolumeSourceRef{
			Kind: cdiv1.DataVolumeDataSource, Namespace: &namespace, Name: source.Name,
		}
	case hypervisor.TemplateVolume:
		template.Spec.Source = &cdiv1.DataVolumeSource{
			PVC: &cdiv1.DataVolumeSourcePVC{Namespace: p.templateNamespace(source), Name: source.Name},
		}
	default:
		return virtv1.Volume{}, nil, hypervisor.Errorf(hypervisor.Rejected, "TemplateInvalid",
			"create machine: KubeVirt has no templates of kind %q", source.Kind)
	}

	volume.DataVolume = &virtv1.DataVolumeSource{Name: name}

	return volume, []virtv1.DataVolumeTemplateSpec{template}, nil
}

func (p *Provider) templateNamespace(ref hypervisor.TemplateRef) string {
	return cmp.Or(ref.Namespace, p.config.Namespace)
}

// buildStorage returns the storage of a machine's first disk. If the shape has no disk size, the
// Containerized Data Importer uses the size of the template.
func (p *Provider) buildStorage(shape hypervisor.Shape) *cdiv1.StorageSpec {
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
