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

// fields and list shorten what unstructured objects are made of.
type (
	fields = map[string]any
	list   = []any
)

// MachineSpec is what the pool's machines are made from. The error says what of the
// pool's network configuration is wrong.
func MachineSpec(pool *v1alpha1.KubevirtNodePool) (v1alpha1.KubevirtMachineSpec, error) {
	var (
		spec v1alpha1.KubevirtMachineSpec
		name string
	)

	if config := pool.Spec.BootstrapNetworkConfig; config != nil {
		network, err := Bootstrap(pool)
		if err != nil {
			return spec, err
		}

		data, err := networkTemplate(config)
		if err != nil {
			return spec, err
		}

		name = network.Name
		spec.BootstrapNetworkConfig = &v1alpha1.VirtualMachineBootstrapNetworkConfig{
			Interface: Interface, NetworkName: network.Name, NetworkData: &data,
			Subnets: config.Addresses, ExcludedAddresses: config.ExcludedAddresses,
		}
	}

	raw, err := json.Marshal(fields{"spec": virtualMachineSpec(pool, name)})
	if err != nil {
		return spec, fmt.Errorf("write virtualMachineTemplate: %w", err)
	}

	spec.VirtualMachineTemplate = runtime.RawExtension{Raw: raw}

	return spec, nil
}

// virtualMachineSpec is the spec of the pool's VirtualMachines; bootstrap is the name of
// the network with static addresses, if there is one.
func virtualMachineSpec(pool *v1alpha1.KubevirtNodePool, bootstrap string) fields {
	disks, volumes, dataVolumes := storage(pool)
	interfaces, networks := attachments(pool, bootstrap)

	domain := compute(pool.Spec.Compute)
	domain["devices"] = fields{"disks": disks, "interfaces": interfaces, "rng": fields{}}

	pod := fields{
		"domain": domain, "networks": networks, "volumes": volumes,
		// With addresses and memory of its own a machine goes along when its node is
		// drained, if its disk can.
		"evictionStrategy": "LiveMigrateIfPossible",
		// A host that fails takes as few of the pool's machines along as there can be.
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

// compute is the domain without its devices.
func compute(c *v1alpha1.KubevirtCompute) fields {
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

// storage is the root disk, and the drive for user data.
func storage(pool *v1alpha1.KubevirtNodePool) (disks, volumes, dataVolumes list) {
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
				"storage": claim(persistent),
			},
		}}
	}

	if ref := pool.Spec.UserDataSecretRef; ref != nil {
		name := ref.Name
		if pool.Spec.UserDataSecrets == v1alpha1.UserDataPerMachine {
			name += "-" + machineMark
		}

		disks = append(disks, disk(cloudInitDisk))
		volumes = append(volumes, fields{
			"name": cloudInitDisk, driveConfigDrive: fields{"secretRef": fields{"name": name}},
		})
	}

	return disks, volumes, dataVolumes
}

// claim is the PersistentVolumeClaim as CDI takes it.
func claim(persistent *v1alpha1.KubevirtPersistentVolume) fields {
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

// attachments are the interfaces and the networks that they are attached to.
func attachments(pool *v1alpha1.KubevirtNodePool, bootstrap string) (interfaces, networks list) {
	interfaces, networks = list{}, list{}

	if pool.Spec.AttachDefaultNetwork == nil || *pool.Spec.AttachDefaultNetwork {
		interfaces = append(interfaces, fields{"name": "default", "masquerade": fields{}})
		networks = append(networks, fields{"name": "default", "pod": fields{}})
	}

	for _, network := range Networks(pool) {
		nic := fields{"name": network.Name, "bridge": fields{}}
		if network.Name == bootstrap {
			nic["acpiIndex"] = int64(acpiIndex)
		}

		interfaces = append(interfaces, nic)
		networks = append(networks, fields{
			"name": network.Name, "multus": fields{"networkName": network.Definition},
		})
	}

	return interfaces, networks
}
