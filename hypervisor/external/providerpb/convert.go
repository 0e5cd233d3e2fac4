// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package providerpb

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// NewConnectRequest returns the request for a connection with the settings of a cluster. The request contains no
// credentials, and no settings of the built-in providers.
func NewConnectRequest(config *hypervisor.Config, operatorUID string) *ConnectRequest {
	return &ConnectRequest{
		Protocol: ProtocolVersion, OperatorUid: operatorUID, Cluster: config.Name, Nodes: config.Nodes,
		DefaultStorage: config.DefaultStorage, IsoStorage: config.ISOStorage, DefaultNetwork: config.DefaultNetwork,
		ResourcePool: config.ResourcePool, IdMin: int64(config.IDMin), IdMax: int64(config.IDMax),
		ClonesPerStorage: int64(config.ClonesPerStorage), CallsPerNode: int64(config.CallsPerNode), Tags: config.Tags,
		Settings: config.Settings,
	}
}

// ToConfig returns the settings of the cluster.
func (x *ConnectRequest) ToConfig() hypervisor.Config {
	return hypervisor.Config{
		Name: x.GetCluster(), Nodes: x.GetNodes(), DefaultStorage: x.GetDefaultStorage(), ISOStorage: x.GetIsoStorage(),
		DefaultNetwork: x.GetDefaultNetwork(), ResourcePool: x.GetResourcePool(), IDMin: int(x.GetIdMin()), IDMax: int(x.GetIdMax()),
		ClonesPerStorage: int(x.GetClonesPerStorage()), CallsPerNode: int(x.GetCallsPerNode()), Tags: x.GetTags(),
		Settings: x.GetSettings(),
	}
}

// NewInfo returns the message of an Info.
func NewInfo(info hypervisor.Info) *Info {
	return &Info{
		Product: info.Product, Version: info.Version, Nodes: newNodes(info.Nodes), NodesHidden: info.NodesHidden,
		Warnings: info.Warnings,
	}
}

// ToInfo returns the Info of a message.
func (x *Info) ToInfo() hypervisor.Info {
	return hypervisor.Info{
		Product: x.GetProduct(), Version: x.GetVersion(), Nodes: toNodes(x.GetNodes()), NodesHidden: x.GetNodesHidden(),
		Warnings: x.GetWarnings(),
	}
}

func newNodes(nodes []hypervisor.Node) []*Node {
	var out []*Node

	for i := range nodes {
		node := &nodes[i]
		out = append(out, &Node{
			Name: node.Name, Online: node.Online, OfflineReason: node.OfflineReason, Exclusions: node.Exclusions,
			Free: newResources(node.Free), Total: newResources(node.Total),
		})
	}

	return out
}

func toNodes(nodes []*Node) []hypervisor.Node {
	var out []hypervisor.Node

	for _, node := range nodes {
		out = append(out, hypervisor.Node{
			Name: node.GetName(), Online: node.GetOnline(), OfflineReason: node.GetOfflineReason(), Exclusions: node.GetExclusions(),
			Free: node.GetFree().toResources(), Total: node.GetTotal().toResources(),
		})
	}

	return out
}

func newResources(r hypervisor.Resources) *Resources {
	return &Resources{Cpu: r.CPU, Memory: r.Memory, Disk: r.Disk}
}

func (x *Resources) toResources() hypervisor.Resources {
	return hypervisor.Resources{CPU: x.GetCpu(), Memory: x.GetMemory(), Disk: x.GetDisk()}
}

// NewTemplateRef returns the message of a TemplateRef.
func NewTemplateRef(ref hypervisor.TemplateRef) *TemplateRef {
	return &TemplateRef{
		Id: int64(ref.ID), Name: ref.Name, Kind: ref.Kind, Namespace: ref.Namespace, PullSecret: ref.PullSecret,
		Tags: ref.Tags, Newest: ref.Newest,
	}
}

// ToTemplateRef returns the TemplateRef of a message.
func (x *TemplateRef) ToTemplateRef() hypervisor.TemplateRef {
	return hypervisor.TemplateRef{
		ID: int(x.GetId()), Name: x.GetName(), Kind: x.GetKind(), Namespace: x.GetNamespace(), PullSecret: x.GetPullSecret(),
		Tags: x.GetTags(), Newest: x.GetNewest(),
	}
}

// NewShape returns the message of a Shape.
func NewShape(shape hypervisor.Shape) *Shape {
	return &Shape{
		Cpu: int64(shape.CPU), Memory: shape.Memory, Disk: shape.Disk, Linked: shape.Linked, Storage: shape.Storage,
		Bridge: shape.Bridge, Vlan: int64(shape.VLAN), Tpm: shape.TPM, CloudInitSource: shape.CloudInitSource,
		SnippetsStorage: shape.SnippetsStorage, Nested: shape.Nested, Devices: newDevices(shape.Devices),
	}
}

func newDevices(devices []hypervisor.Device) []*Device {
	var out []*Device
	for _, d := range devices {
		out = append(out, &Device{Name: d.Name, Count: int64(d.Count), Gpu: d.GPU})
	}

	return out
}

func toDevices(devices []*Device) []hypervisor.Device {
	var out []hypervisor.Device
	for _, d := range devices {
		out = append(out, hypervisor.Device{Name: d.GetName(), Count: int(d.GetCount()), GPU: d.GetGpu()})
	}

	return out
}

// ToShape returns the Shape of a message.
func (x *Shape) ToShape() hypervisor.Shape {
	return hypervisor.Shape{
		CPU: int(x.GetCpu()), Memory: x.GetMemory(), Disk: x.GetDisk(), Linked: x.GetLinked(), Storage: x.GetStorage(),
		Bridge: x.GetBridge(), VLAN: int(x.GetVlan()), TPM: x.GetTpm(), CloudInitSource: x.GetCloudInitSource(),
		SnippetsStorage: x.GetSnippetsStorage(), Nested: x.GetNested(), Devices: toDevices(x.GetDevices()),
	}
}

// NewResolveResponse returns the message with the templates.
func NewResolveResponse(templates []hypervisor.Template) *ResolveResponse {
	out := &ResolveResponse{}

	for i := range templates {
		t := &templates[i]
		out.Templates = append(out.Templates, &Template{
			Id: int64(t.ID), Name: t.Name, Node: t.Node, Storage: t.Storage, Shared: t.Shared, DiskBytes: t.DiskBytes, Os: t.OS,
		})
	}

	return out
}

// ToTemplates returns the templates of a message.
func (x *ResolveResponse) ToTemplates() []hypervisor.Template {
	var out []hypervisor.Template

	for _, t := range x.GetTemplates() {
		out = append(out, hypervisor.Template{
			ID: int(t.GetId()), Name: t.GetName(), Node: t.GetNode(), Storage: t.GetStorage(), Shared: t.GetShared(),
			DiskBytes: t.GetDiskBytes(), OS: t.GetOs(),
		})
	}

	return out
}

// NewOwner returns the message of an Owner.
func NewOwner(owner hypervisor.Owner) *Owner {
	return &Owner{Namespace: owner.Namespace, Name: owner.Name, Uid: owner.UID, Pool: owner.Pool}
}

// ToOwner returns the Owner of a message.
func (x *Owner) ToOwner() hypervisor.Owner {
	return hypervisor.Owner{Namespace: x.GetNamespace(), Name: x.GetName(), UID: x.GetUid(), Pool: x.GetPool()}
}

// NewMachineSpec returns the message of a MachineSpec.
func NewMachineSpec(spec hypervisor.MachineSpec) *MachineSpec {
	return &MachineSpec{
		Owner: NewOwner(spec.Owner), Id: int64(spec.ID), Node: spec.Node, Hostname: spec.Hostname,
		Template: NewTemplateRef(spec.Template), Shape: NewShape(spec.Shape), Strategy: string(spec.Strategy), Standby: spec.Standby,
		Network: &NetworkOptions{
			Addresses: spec.Network.Addresses, Gateways: spec.Network.Gateways, DnsServers: spec.Network.DNSServers,
			SearchDomains: spec.Network.SearchDomains, AddressNetwork: spec.Network.AddressNetwork,
		},
	}
}

// ToMachineSpec returns the MachineSpec of a message.
func (x *MachineSpec) ToMachineSpec() hypervisor.MachineSpec {
	return hypervisor.MachineSpec{
		Owner: x.GetOwner().ToOwner(), ID: int(x.GetId()), Node: x.GetNode(), Hostname: x.GetHostname(),
		Template: x.GetTemplate().ToTemplateRef(), Shape: x.GetShape().ToShape(), Strategy: hypervisor.Strategy(x.GetStrategy()),
		Standby: x.GetStandby(),
		Network: hypervisor.NetworkOptions{
			Addresses: x.GetNetwork().GetAddresses(), Gateways: x.GetNetwork().GetGateways(),
			DNSServers: x.GetNetwork().GetDnsServers(), SearchDomains: x.GetNetwork().GetSearchDomains(),
			AddressNetwork: x.GetNetwork().GetAddressNetwork(),
		},
	}
}

// SetClaimed adds the machines that claims hold to a request.
func (x *ReserveRequest) SetClaimed(machines []hypervisor.ClaimedMachine) {
	for _, m := range machines {
		x.ClaimedIds = append(x.ClaimedIds, int64(m.ID))

		if m.Node != "" {
			x.PlacedMachines = append(x.PlacedMachines, &PlacedMachine{
				Id: int64(m.ID), Node: m.Node, OwnerUid: m.OwnerUID, Cpu: int64(m.CPU), Memory: m.Memory, Devices: newDevices(m.Devices),
			})
		}
	}
}

// ToClaimed returns the machines that claims hold.
func (x *ReserveRequest) ToClaimed() []hypervisor.ClaimedMachine {
	var out []hypervisor.ClaimedMachine

	placed := map[int64]*PlacedMachine{}
	for _, m := range x.GetPlacedMachines() {
		placed[m.GetId()] = m
	}

	for _, id := range x.GetClaimedIds() {
		m := placed[id]
		out = append(out, hypervisor.ClaimedMachine{
			ID: int(id), Node: m.GetNode(), OwnerUID: m.GetOwnerUid(), CPU: int(m.GetCpu()), Memory: m.GetMemory(),
			Devices: toDevices(m.GetDevices()),
		})
	}

	return out
}

// NewReservation returns the message of a Reservation.
func NewReservation(r hypervisor.Reservation) *Reservation {
	return &Reservation{Id: int64(r.ID), Node: r.Node, Exists: r.Exists, Addresses: r.Addresses}
}

// ToReservation returns the Reservation of a message.
func (x *Reservation) ToReservation() hypervisor.Reservation {
	return hypervisor.Reservation{ID: int(x.GetId()), Node: x.GetNode(), Exists: x.GetExists(), Addresses: x.GetAddresses()}
}

// NewSeed returns the message of a Seed.
func NewSeed(seed hypervisor.Seed) *Seed {
	return &Seed{UserData: seed.UserData, MetaData: seed.MetaData, NetworkConfig: seed.NetworkConfig, Files: seed.Files}
}

// ToSeed returns the Seed of a message.
func (x *Seed) ToSeed() hypervisor.Seed {
	return hypervisor.Seed{
		UserData: x.GetUserData(), MetaData: x.GetMetaData(), NetworkConfig: x.GetNetworkConfig(), Files: x.GetFiles(),
	}
}

// NewMachineRef returns the message of a MachineRef.
func NewMachineRef(ref hypervisor.MachineRef) *MachineRef {
	return &MachineRef{Id: int64(ref.ID), Owner: NewOwner(ref.Owner), PowerOffReported: ref.PowerOffReported}
}

// ToMachineRef returns the MachineRef of a message.
func (x *MachineRef) ToMachineRef() hypervisor.MachineRef {
	return hypervisor.MachineRef{ID: int(x.GetId()), Owner: x.GetOwner().ToOwner(), PowerOffReported: x.GetPowerOffReported()}
}

// NewMachine returns the message of a Machine.
func NewMachine(m hypervisor.Machine) *Machine {
	out := &Machine{
		Id: int64(m.ID), Name: m.Name, Node: m.Node, Owner: NewOwner(m.Owner), State: string(m.State), Cloned: m.Cloned,
		Mac: m.MAC, Ip: m.IP, Message: m.Message,
	}
	if !m.CreatedAt.IsZero() {
		out.CreatedAt = timestamppb.New(m.CreatedAt)
	}

	return out
}

// ToMachine returns the Machine of a message.
func (x *Machine) ToMachine() hypervisor.Machine {
	out := hypervisor.Machine{
		ID: int(x.GetId()), Name: x.GetName(), Node: x.GetNode(), Owner: x.GetOwner().ToOwner(),
		State: hypervisor.State(x.GetState()), Cloned: x.GetCloned(), MAC: x.GetMac(), IP: x.GetIp(), Message: x.GetMessage(),
	}
	if created := x.GetCreatedAt(); created.IsValid() {
		out.CreatedAt = created.AsTime().In(time.UTC)
	}

	return out
}

// NewListResponse returns the message with the machines.
func NewListResponse(machines []hypervisor.Machine) *ListResponse {
	out := &ListResponse{}
	for i := range machines {
		out.Machines = append(out.Machines, NewMachine(machines[i]))
	}

	return out
}

// ToMachines returns the machines of a message.
func (x *ListResponse) ToMachines() []hypervisor.Machine {
	var out []hypervisor.Machine
	for _, m := range x.GetMachines() {
		out = append(out, m.ToMachine())
	}

	return out
}

// NewCapacityResponse returns the message of a Capacity.
func NewCapacityResponse(c hypervisor.Capacity) *CapacityResponse {
	return &CapacityResponse{
		Nodes: newNodes(c.Nodes), Free: newResources(c.Free), Total: newResources(c.Total), Machines: int64(c.Machines),
	}
}

// ToCapacity returns the Capacity of a message.
func (x *CapacityResponse) ToCapacity() hypervisor.Capacity {
	return hypervisor.Capacity{
		Nodes: toNodes(x.GetNodes()), Free: x.GetFree().toResources(), Total: x.GetTotal().toResources(),
		Machines: int(x.GetMachines()),
	}
}

// NewExecuteResponse returns the message of an ExecResult.
func NewExecuteResponse(r hypervisor.ExecResult) *ExecuteResponse {
	return &ExecuteResponse{Stdout: r.Stdout, Stderr: r.Stderr, ExitCode: int64(r.ExitCode)}
}

// ToExecResult returns the ExecResult of a message.
func (x *ExecuteResponse) ToExecResult() hypervisor.ExecResult {
	return hypervisor.ExecResult{Stdout: x.GetStdout(), Stderr: x.GetStderr(), ExitCode: int(x.GetExitCode())}
}
