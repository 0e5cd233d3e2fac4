// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"encoding/json"
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
)

const (
	rootDisk      = "root"
	cloudInitDisk = "cloudinit"
)

// fields and list are short names for the types in unstructured objects.
type (
	fields = map[string]any
	list   = []any
)

// NewMachineSpec returns the spec of the pool's machines. It returns an error if the pool's network
// configuration is invalid.
func NewMachineSpec(pool *v1alpha1.KubevirtNodePool) (v1alpha1.KubevirtMachineSpec, error) {
	var (
		spec v1alpha1.KubevirtMachineSpec
		name string
	)

	if config := pool.Spec.BootstrapNetworkConfig; config != nil {
		network, err := BootstrapNetwork(pool)
		if err != nil {
			return spec, err
		}

		data, err := newNetworkTemplate(config)
		if err != nil {
			return spec, err
		}

		name = network.Name
		spec.BootstrapNetworkConfig = &v1alpha1.VirtualMachineBootstrapNetworkConfig{
			Interface: Interface, NetworkName: network.Name, NetworkData: &data,
			Subnets: config.Addresses, ExcludedAddresses: config.ExcludedAddresses,
		}
	}

	raw, err := json.Marshal(fields{"spec": newVirtualMachineSpec(pool, name)})
	if err != nil {
		return spec, fmt.Errorf("encode virtualMachineTemplate: %w", err)
	}

	spec.VirtualMachineTemplate = runtime.RawExtension{Raw: raw}

	return spec, nil
}

// newVirtualMachineSpec returns the spec of the pool's VirtualMachines. bootstrapNetwork is the name of the
// network with static addresses. It is empty if the pool has no static addresses.
func newVirtualMachineSpec(pool *v1alpha1.KubevirtNodePool, bootstrapNetwork string) fields {
	disks, volumes, dataVolumes := newStorage(pool)
	interfaces, networks := newInterfaces(pool, bootstrapNetwork)

	domain := newDomain(pool.Spec.Compute)
	domain["devices"] = fields{"disks": disks, "interfaces": interfaces, "rng": fields{}}

	pod := fields{
		"domain": domain, "networks": networks, "volumes": volumes,
		// If the Kubernetes node of a machine is drained, KubeVirt migrates the machine live, if its disk
		// allows this.
		"evictionStrategy": "LiveMigrateIfPossible",
		// Spread the machines of the pool, so the failure of one node affects as few of them as possible.
		"topologySpreadConstraints": list{fields{
			"maxSkew": int64(1), "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
			"labelSelector": fields{"matchLabels": fields{v1alpha1.LabelNodePool: pool.Name}},
		}},
	}

	if len(pool.Spec.NodeSelector) > 0 {
		selector := fields{}
		for key, value := range pool.Spec.NodeSelector {
			selector[key] = value
		}

		pod["nodeSelector"] = selector
	}

	spec := fields{"runStrategy": "Always", "template": fields{"spec": pod}}
	if len(dataVolumes) > 0 {
		spec["dataVolumeTemplates"] = dataVolumes
	}

	return spec
}

// newDomain returns the domain without its devices.
func newDomain(c *v1alpha1.KubevirtCompute) fields {
	memory := fields{"guest": c.Memory.String()}
	requests := fields{"memory": c.Memory.String()}
	resources := fields{"requests": requests}

	if c.Hugepages != "" {
		memory["hugepages"] = fields{"pageSize": c.Hugepages}
	}

	if c.QosClass == "Guaranteed" {
		requests["cpu"] = strconv.Itoa(int(c.Cores))
		resources["limits"] = fields{"cpu": strconv.Itoa(int(c.Cores)), "memory": c.Memory.String()}
	}

	return fields{"cpu": fields{"cores": int64(c.Cores)}, "memory": memory, "resources": resources}
}

// newStorage returns the root disk, and the cloud-init drive if the pool has user data.
func newStorage(pool *v1alpha1.KubevirtNodePool) (disks, volumes, dataVolumes list) {
	disk := func(name string) fields { return fields{"name": name, "disk": fields{"bus": "virtio"}} }
	image := pool.Spec.RootVolume.DiskImage.ContainerDiskImage

	disks = list{disk(rootDisk)}

	if persistent := pool.Spec.RootVolume.Persistent; persistent == nil {
		volumes = list{fields{"name": rootDisk, "containerDisk": fields{"image": image}}}
	} else {
		volumes = list{fields{"name": rootDisk, "dataVolume": fields{"name": rootDisk}}}
		dataVolumes = list{fields{
			"metadata": fields{"name": rootDisk},
			"spec": fields{
				"source":  fields{"registry": fields{"url": "docker://" + image}},
				"storage": newVolumeClaimSpec(persistent),
			},
		}}
	}

	if ref := pool.Spec.UserDataSecretRef; ref != nil {
		name := ref.Name
		if pool.Spec.UserDataSecrets == v1alpha1.UserDataPerMachine {
			name += "-" + machinePlaceholder
		}

		disks = append(disks, disk(cloudInitDisk))
		volumes = append(volumes, fields{
			"name": cloudInitDisk, driveConfigDrive: fields{"secretRef": fields{"name": name}},
		})
	}

	return disks, volumes, dataVolumes
}

// newVolumeClaimSpec returns the storage field of a DataVolume (CDI) for the persistent root disk.
func newVolumeClaimSpec(persistent *v1alpha1.KubevirtPersistentVolume) fields {
	out := fields{"resources": fields{"requests": fields{"storage": persistent.Size.String()}}}

	if persistent.StorageClass != "" {
		out["storageClassName"] = persistent.StorageClass
	}

	if persistent.VolumeMode != "" {
		out["volumeMode"] = persistent.VolumeMode
	}

	if len(persistent.AccessModes) > 0 {
		modes := make(list, 0, len(persistent.AccessModes))
		for _, mode := range persistent.AccessModes {
			modes = append(modes, mode)
		}

		out["accessModes"] = modes
	}

	return out
}

// newInterfaces returns the interfaces and the networks to which they are attached.
func newInterfaces(pool *v1alpha1.KubevirtNodePool, bootstrapNetwork string) (interfaces, networks list) {
	interfaces, networks = list{}, list{}

	if pool.Spec.AttachDefaultNetwork == nil || *pool.Spec.AttachDefaultNetwork {
		interfaces = append(interfaces, fields{"name": "default", "masquerade": fields{}})
		networks = append(networks, fields{"name": "default", "pod": fields{}})
	}

	for _, network := range Networks(pool) {
		nic := fields{"name": network.Name, "bridge": fields{}}
		if network.Name == bootstrapNetwork {
			nic["acpiIndex"] = int64(acpiIndex)
		}

		interfaces = append(interfaces, nic)
		networks = append(networks, fields{
			"name": network.Name, "multus": fields{"networkName": network.Definition},
		})
	}

	return interfaces, networks
}
