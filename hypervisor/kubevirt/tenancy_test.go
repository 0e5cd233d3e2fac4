// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor/tenancy"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

// tenancyCluster returns a cluster that the namespaces of the entries are allowed to use. The tests of package
// tenancy are in this test program, because linking a separate test program would take longer than the tests.
func tenancyCluster(entries ...v1alpha1.NamespaceAccess) *v1alpha1.HypervisorCluster {
	return &v1alpha1.HypervisorCluster{
		ObjectMeta: metav1.ObjectMeta{Name: "prod"},
		Spec: v1alpha1.HypervisorClusterSpec{
			DefaultStorage: "local-lvm", DefaultNetwork: "vmbr0", AllowedNamespaces: entries,
			KubeVirt: &v1alpha1.KubeVirtCluster{Namespace: "machines", StorageClassName: "local-lvm", Network: "vlan20"},
		},
	}
}

func TestTenancyFind(t *testing.T) {
	t.Parallel()

	errDown := errors.New("down")
	gold := &v1alpha1.NamespaceSelector{MatchLabels: map[string]string{"tier": "gold"}}

	for name, tt := range map[string]struct {
		entries []v1alpha1.NamespaceAccess
		labels  map[string]string
		down    bool
		// want is the index of the entry. It is -1 for no entry, -2 for a rejection, and -3 for the error of
		// the labels function.
		want int
	}{
		"no entries":            {nil, nil, true, -1},
		"by name":               {[]v1alpha1.NamespaceAccess{{Names: []string{"x"}}, {Names: []string{"y", "ci"}}}, nil, true, 1},
		"no prefix":             {[]v1alpha1.NamespaceAccess{{Names: []string{"ci-2", "c"}}}, nil, true, -2},
		"by labels":             {[]v1alpha1.NamespaceAccess{{Selector: gold}}, map[string]string{"tier": "gold"}, false, 0},
		"other labels":          {[]v1alpha1.NamespaceAccess{{Selector: gold}}, map[string]string{"tier": "tin"}, false, -2},
		"all namespaces":        {[]v1alpha1.NamespaceAccess{{Selector: &v1alpha1.NamespaceSelector{}}}, nil, false, 0},
		"the first counts":      {[]v1alpha1.NamespaceAccess{{Selector: gold}, {Names: []string{"ci"}}}, map[string]string{"tier": "gold"}, false, 0},
		"labels are not read":   {[]v1alpha1.NamespaceAccess{{Selector: gold}, {Names: []string{"ci"}}}, nil, true, -3},
		"a name before a label": {[]v1alpha1.NamespaceAccess{{Names: []string{"ci"}}, {Selector: gold}}, nil, true, 0},
	} {
		in := tenancyCluster(tt.entries...)
		got, err := tenancy.FindEntry(in, "ci", func() (map[string]string, error) {
			if tt.down {
				return nil, errDown
			}

			return tt.labels, nil
		})

		switch tt.want {
		case -1:
			if got != nil || err != nil {
				t.Errorf("%s: %v, %v", name, got, err)
			}
		case -2:
			if errclass.ClassOf(err) != errclass.Configuration || errclass.ReasonOf(err, "") != tenancy.ReasonNamespace {
				t.Errorf("%s: error %v", name, err)
			}
		case -3:
			if !errors.Is(err, errDown) {
				t.Errorf("%s: error %v", name, err)
			}
		default:
			if err != nil || got != &in.Spec.AllowedNamespaces[tt.want] {
				t.Errorf("%s: %v, %v", name, got, err)
			}
		}
	}
}

func TestTenancyCheck(t *testing.T) {
	t.Parallel()

	type template = v1alpha1.HypervisorMachineTemplateSpec

	proxmox := func(change func(*template, *v1alpha1.ProxmoxTemplate)) template {
		source := &v1alpha1.ProxmoxTemplate{TemplateName: "debian"}
		spec := template{Template: v1alpha1.TemplateSource{Proxmox: source}, Network: &v1alpha1.MachineNetwork{Mode: "dhcp"}}
		change(&spec, source)

		return spec
	}
	kubeVirt := func(source v1alpha1.KubeVirtTemplate) template {
		return template{Template: v1alpha1.TemplateSource{KubeVirt: &source}}
	}
	network := func(change func(*v1alpha1.MachineNetwork)) template {
		return proxmox(func(s *template, _ *v1alpha1.ProxmoxTemplate) { change(s.Network) })
	}
	static := func(address string, pool ...v1alpha1.AddressRange) template {
		return network(func(n *v1alpha1.MachineNetwork) {
			n.Static = &v1alpha1.StaticNetwork{IPAddress: address}
			if pool != nil {
				n.Static.Pool = &v1alpha1.AddressPool{Addresses: pool}
			}
		})
	}
	volume := func(namespace, name string) template {
		return kubeVirt(v1alpha1.KubeVirtTemplate{PersistentVolumeClaim: &v1alpha1.KubeVirtSource{Namespace: namespace, Name: name}})
	}
	tags := func(tags ...string) template {
		return proxmox(func(_ *template, p *v1alpha1.ProxmoxTemplate) { p.TemplateName, p.TemplateTags = "", tags })
	}
	addresses := v1alpha1.NamespaceAccess{Addresses: []string{"10.1.0.0/24", "10.2.0.5-10.2.0.9", "fd00::/64"}}
	templates := v1alpha1.NamespaceAccess{Templates: []string{"debian", "9000", "quay.io/x/debian:13", "machines/gold", "images/silver", "tags:a,b"}}
	storages := v1alpha1.NamespaceAccess{Storages: []string{"fast"}}
	networks := v1alpha1.NamespaceAccess{Networks: []string{"vmbr7", "machines/vlan7"}}
	domains := v1alpha1.NamespaceAccess{Domains: []string{"Team-A.example.com"}}
	domain := func(name string) template {
		return network(func(n *v1alpha1.MachineNetwork) { n.DNS = &v1alpha1.MachineDNS{Domain: name} })
	}
	devices := v1alpha1.NamespaceAccess{Devices: []string{"gpu"}}
	device := func(names ...string) template {
		return proxmox(func(s *template, _ *v1alpha1.ProxmoxTemplate) {
			for _, name := range names {
				s.Resources.Devices = append(s.Resources.Devices, v1alpha1.MachineDevice{Name: name})
			}
		})
	}
	vlans := v1alpha1.NamespaceAccess{VLANs: []v1alpha1.VLANRange{{Min: 7, Max: 7}, {Min: 100, Max: 199}}}

	for name, tt := range map[string]struct {
		entry  *v1alpha1.NamespaceAccess
		spec   template
		reason string
	}{
		"no entry":        {nil, static("192.0.2.1"), ""},
		"no limits":       {&v1alpha1.NamespaceAccess{}, static("192.0.2.1"), ""},
		"a device":        {&devices, device("gpu"), ""},
		"another device":  {&devices, device("gpu", "qat"), tenancy.ReasonDevice},
		"no device":       {&devices, static("192.0.2.1"), ""},
		"a template":      {&templates, proxmox(func(*template, *v1alpha1.ProxmoxTemplate) {}), ""},
		"by its id":       {&templates, proxmox(func(_ *template, p *v1alpha1.ProxmoxTemplate) { p.TemplateName, p.TemplateID = "", new(int32(9000)) }), ""},
		"another one":     {&templates, proxmox(func(_ *template, p *v1alpha1.ProxmoxTemplate) { p.TemplateName = "windows" }), tenancy.ReasonTemplate},
		"another id":      {&templates, proxmox(func(_ *template, p *v1alpha1.ProxmoxTemplate) { p.TemplateName, p.TemplateID = "", new(int32(9001)) }), tenancy.ReasonTemplate},
		"by its tags":     {&templates, tags("b", "a"), ""},
		"more tags":       {&templates, tags("a", "b", "c"), tenancy.ReasonTemplate},
		"a name as a tag": {&templates, tags("debian"), tenancy.ReasonTemplate},
		"an id as a tag":  {&templates, tags("9000"), tenancy.ReasonTemplate},
		"a volume":        {&templates, volume("", "gold"), ""},
		"written out":     {&templates, volume("machines", "gold"), ""},
		"not its own":     {&templates, volume("", "silver"), tenancy.ReasonTemplate},
		"of others":       {&templates, volume("images", "silver"), ""},
		"not listed":      {&templates, volume("", "secrets"), tenancy.ReasonTemplate},
		"an image":        {&templates, kubeVirt(v1alpha1.KubeVirtTemplate{ContainerDisk: &v1alpha1.ContainerDisk{Image: "quay.io/x/debian:13"}}), ""},
		"another image": {
			&templates, kubeVirt(v1alpha1.KubeVirtTemplate{ContainerDisk: &v1alpha1.ContainerDisk{Image: "quay.io/y/debian:13"}}), tenancy.ReasonTemplate,
		},
		"a storage":           {&storages, proxmox(func(_ *template, p *v1alpha1.ProxmoxTemplate) { p.Storage = "fast" }), ""},
		"none named":          {&storages, proxmox(func(*template, *v1alpha1.ProxmoxTemplate) {}), ""},
		"another storage":     {&storages, proxmox(func(_ *template, p *v1alpha1.ProxmoxTemplate) { p.Storage = "slow" }), tenancy.ReasonStorage},
		"snippets":            {&storages, proxmox(func(_ *template, p *v1alpha1.ProxmoxTemplate) { p.SnippetsStorage = "slow" }), tenancy.ReasonStorage},
		"the default storage": {&storages, kubeVirt(v1alpha1.KubeVirtTemplate{StorageClassName: "local-lvm"}), ""},
		"a storage class":     {&storages, kubeVirt(v1alpha1.KubeVirtTemplate{StorageClassName: "slow"}), tenancy.ReasonStorage},
		"a bridge":            {&networks, network(func(n *v1alpha1.MachineNetwork) { n.Bridge = "vmbr7" }), ""},
		"the default bridge":  {&networks, network(func(n *v1alpha1.MachineNetwork) { n.Bridge = "vmbr0" }), ""},
		"another bridge":      {&networks, network(func(n *v1alpha1.MachineNetwork) { n.Bridge = "vmbr70" }), tenancy.ReasonNetwork},
		"a definition":        {&networks, kubeVirt(v1alpha1.KubeVirtTemplate{Network: "vlan7"}), ""},
		"the default one":     {&networks, kubeVirt(v1alpha1.KubeVirtTemplate{Network: "machines/vlan20"}), ""},
		"of another place":    {&networks, kubeVirt(v1alpha1.KubeVirtTemplate{Network: "storage/vlan7"}), tenancy.ReasonNetwork},
		"a VLAN":              {&vlans, network(func(n *v1alpha1.MachineNetwork) { n.VLAN = new(int32(150)) }), ""},
		"another VLAN":        {&vlans, network(func(n *v1alpha1.MachineNetwork) { n.VLAN = new(int32(200)) }), tenancy.ReasonVLAN},
		"no VLAN":             {&vlans, network(func(*v1alpha1.MachineNetwork) {}), ""},
		"a domain":            {&domains, domain("team-a.example.com"), ""},
		"one below it":        {&domains, domain("ci.TEAM-A.example.com"), ""},
		"one like it":         {&domains, domain("not-team-a.example.com"), tenancy.ReasonDomain},
		"one above it":        {&domains, domain("example.com"), tenancy.ReasonDomain},
		"no domain":           {&domains, static("192.0.2.1"), ""},
		"an address":          {&addresses, static("10.1.0.255"), ""},
		"an address beside":   {&addresses, static("10.1.1.0"), tenancy.ReasonAddress},
		"a pool":              {&addresses, static("", "10.1.0.0/25", "10.2.0.5-10.2.0.6", "fd00::1-fd00::ffff"), ""},
		"a pool beyond":       {&addresses, static("", "10.0.0.0/8"), tenancy.ReasonAddress},
		"a pool over the end": {&addresses, static("", "10.2.0.5-10.2.0.10"), tenancy.ReasonAddress},
		"of which one is bad": {&addresses, static("", "10.1.0.0/24", "10.3.0.1/32"), tenancy.ReasonAddress},
	} {
		err := tenancy.CheckTemplate(tt.entry, tenancyCluster(), &v1alpha1.HypervisorMachineTemplate{Spec: tt.spec})
		if reason := errclass.ReasonOf(err, ""); reason != tt.reason || err != nil && errclass.ClassOf(err) != errclass.Configuration {
			t.Errorf("%s: error %v, want reason %q", name, err, tt.reason)
		}
	}
}

// Templates of libvirt and of external providers are limited like those of Proxmox VE and KubeVirt.
func TestTenancyOfOtherProviders(t *testing.T) {
	t.Parallel()

	type template = v1alpha1.HypervisorMachineTemplateSpec

	libvirt := func(source v1alpha1.LibvirtTemplate) template {
		return template{Template: v1alpha1.TemplateSource{Libvirt: &source}}
	}
	external := func(source v1alpha1.ExternalTemplate) template {
		return template{Template: v1alpha1.TemplateSource{External: &source}}
	}
	volume := func(name, bridge string) template {
		spec := libvirt(v1alpha1.LibvirtTemplate{Volume: name})
		spec.Network = &v1alpha1.MachineNetwork{Mode: v1alpha1.NetworkModeDHCP, Bridge: bridge}

		return spec
	}
	tags := func(tags ...string) template { return libvirt(v1alpha1.LibvirtTemplate{Tags: tags}) }
	entry := &v1alpha1.NamespaceAccess{
		Templates: []string{"runner.qcow2", "runner", "tags:linux,released"}, Storages: []string{"fast"}, Networks: []string{"br7"},
	}

	for name, tt := range map[string]struct {
		spec   template
		reason string
	}{
		"a volume":                   {volume("runner.qcow2", ""), ""},
		"another volume":             {volume("windows.qcow2", ""), tenancy.ReasonTemplate},
		"a domain":                   {libvirt(v1alpha1.LibvirtTemplate{Domain: "runner"}), ""},
		"another domain":             {libvirt(v1alpha1.LibvirtTemplate{Domain: "windows"}), tenancy.ReasonTemplate},
		"tags":                       {tags("linux", "released"), ""},
		"tags in another order":      {tags("released", "linux"), ""},
		"fewer tags":                 {tags("linux"), tenancy.ReasonTemplate},
		"a name as a tag":            {tags("runner"), tenancy.ReasonTemplate},
		"a bridge":                   {volume("runner.qcow2", "br7"), ""},
		"another bridge":             {volume("runner.qcow2", "br70"), tenancy.ReasonNetwork},
		"external":                   {external(v1alpha1.ExternalTemplate{Name: "runner"}), ""},
		"external, another template": {external(v1alpha1.ExternalTemplate{Name: "windows"}), tenancy.ReasonTemplate},
		"external, a storage":        {external(v1alpha1.ExternalTemplate{Name: "runner", Storage: "fast"}), ""},
		"external, default storage":  {external(v1alpha1.ExternalTemplate{Name: "runner", Storage: "local"}), ""},
		"external, another storage":  {external(v1alpha1.ExternalTemplate{Name: "runner", Storage: "slow"}), tenancy.ReasonStorage},
	} {
		cluster := &v1alpha1.HypervisorCluster{Spec: v1alpha1.HypervisorClusterSpec{DefaultStorage: "local", DefaultNetwork: "lan"}}

		err := tenancy.CheckTemplate(entry, cluster, &v1alpha1.HypervisorMachineTemplate{Spec: tt.spec})
		if reason := errclass.ReasonOf(err, ""); reason != tt.reason {
			t.Errorf("%s: error %v, want reason %q", name, err, tt.reason)
		}
	}
}

// A template without a bridge is limited by what its machines would be attached to, on each host on which they may run.
func TestTenancyOfTemplatesWithoutBridge(t *testing.T) {
	t.Parallel()

	type host = v1alpha1.LibvirtHost

	proxmox := v1alpha1.TemplateSource{Proxmox: &v1alpha1.ProxmoxTemplate{TemplateName: "debian"}}
	libvirt := v1alpha1.TemplateSource{Libvirt: &v1alpha1.LibvirtTemplate{Volume: "debian.qcow2"}}
	kubeVirt := v1alpha1.TemplateSource{KubeVirt: &v1alpha1.KubeVirtTemplate{}}
	external := v1alpha1.TemplateSource{External: &v1alpha1.ExternalTemplate{Name: "debian"}}
	none := v1alpha1.HypervisorClusterSpec{}
	hosts := func(hosts ...host) v1alpha1.HypervisorClusterSpec {
		return v1alpha1.HypervisorClusterSpec{Libvirt: &v1alpha1.LibvirtCluster{Hosts: hosts}}
	}

	for name, tt := range map[string]struct {
		source  v1alpha1.TemplateSource
		cluster v1alpha1.HypervisorClusterSpec
		vlan    int32
		// says is a part of the message. It is empty if the template is allowed.
		reason, says string
	}{
		"the default of the cluster":         {proxmox, v1alpha1.HypervisorClusterSpec{DefaultNetwork: "vmbr0"}, 0, "", ""},
		"Proxmox VE, the template's own":     {proxmox, none, 0, tenancy.ReasonNetwork, "set network.bridge of the template"},
		"and a VLAN":                         {proxmox, none, 100, tenancy.ReasonNetwork, "only network br7, default"},
		"external, the provider's choice":    {external, none, 0, tenancy.ReasonNetwork, "defaultNetwork of the HypervisorCluster"},
		"external, with a default":           {external, v1alpha1.HypervisorClusterSpec{DefaultNetwork: "lan"}, 0, "", ""},
		"the pod network":                    {kubeVirt, v1alpha1.HypervisorClusterSpec{KubeVirt: &v1alpha1.KubeVirtCluster{Namespace: "machines"}}, 0, "", ""},
		"the default of KubeVirt":            {kubeVirt, v1alpha1.HypervisorClusterSpec{KubeVirt: &v1alpha1.KubeVirtCluster{Namespace: "machines", Network: "vlan20"}}, 0, "", ""},
		"an allowed bridge of the hosts":     {libvirt, hosts(host{Name: "a", Bridge: "br7"}, host{Name: "b", Bridge: "br7"}), 0, "", ""},
		"an allowed network of the hosts":    {libvirt, hosts(host{Name: "a", Bridge: "br7"}, host{Name: "b", Network: "default"}), 0, "", ""},
		"hosts without bridge and network":   {libvirt, hosts(host{Name: "a"}, host{Name: "b", Bridge: "br7"}), 0, "", ""},
		"another bridge of the only host":    {libvirt, hosts(host{Name: "a", Bridge: "br70"}), 0, tenancy.ReasonNetwork, "network br70 of host a"},
		"another bridge of one of the hosts": {libvirt, hosts(host{Name: "a", Bridge: "br7"}, host{Name: "b", Bridge: "br70"}), 0, tenancy.ReasonNetwork, "network br70 of host b"},
		"another network of one of them":     {libvirt, hosts(host{Name: "a", Bridge: "br7"}, host{Name: "b", Network: "lab"}), 0, tenancy.ReasonNetwork, "network lab of host b"},
	} {
		cluster, spec := &v1alpha1.HypervisorCluster{Spec: tt.cluster}, v1alpha1.HypervisorMachineTemplateSpec{Template: tt.source}
		if tt.vlan != 0 {
			spec.Network = &v1alpha1.MachineNetwork{VLAN: &tt.vlan}
		}

		entry := &v1alpha1.NamespaceAccess{Networks: []string{"br7", "default"}}

		err := tenancy.CheckTemplate(entry, cluster, &v1alpha1.HypervisorMachineTemplate{Spec: spec})
		if reason := errclass.ReasonOf(err, ""); reason != tt.reason || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: error %v, want reason %q and %q", name, err, tt.reason, tt.says)
		}

		// Without a list of networks, all are allowed.
		if err := tenancy.CheckTemplate(&v1alpha1.NamespaceAccess{}, cluster, &v1alpha1.HypervisorMachineTemplate{Spec: spec}); err != nil {
			t.Errorf("%s: error %v without limits", name, err)
		}
	}
}

// Proxmox VE keeps the VLAN of its own template only if neither the template nor the cluster names a bridge.
func TestTenancyOfVLANs(t *testing.T) {
	t.Parallel()

	entry := &v1alpha1.NamespaceAccess{VLANs: []v1alpha1.VLANRange{{Min: 100, Max: 199}}}

	for name, tt := range map[string]struct {
		defaultNetwork string
		network        *v1alpha1.MachineNetwork
		source         v1alpha1.TemplateSource
		reason         string
	}{
		"the template's own": {"", nil, v1alpha1.TemplateSource{Proxmox: &v1alpha1.ProxmoxTemplate{}}, tenancy.ReasonVLAN},
		"a VLAN":             {"", &v1alpha1.MachineNetwork{VLAN: new(int32(150))}, v1alpha1.TemplateSource{Proxmox: &v1alpha1.ProxmoxTemplate{}}, ""},
		"another VLAN":       {"", &v1alpha1.MachineNetwork{VLAN: new(int32(20))}, v1alpha1.TemplateSource{Proxmox: &v1alpha1.ProxmoxTemplate{}}, tenancy.ReasonVLAN},
		"a bridge":           {"", &v1alpha1.MachineNetwork{Bridge: "vmbr0"}, v1alpha1.TemplateSource{Proxmox: &v1alpha1.ProxmoxTemplate{}}, ""},
		"a default bridge":   {"vmbr0", nil, v1alpha1.TemplateSource{Proxmox: &v1alpha1.ProxmoxTemplate{}}, ""},
		"libvirt":            {"", nil, v1alpha1.TemplateSource{Libvirt: &v1alpha1.LibvirtTemplate{}}, ""},
		"external":           {"", nil, v1alpha1.TemplateSource{External: &v1alpha1.ExternalTemplate{}}, ""},
	} {
		cluster := &v1alpha1.HypervisorCluster{Spec: v1alpha1.HypervisorClusterSpec{DefaultNetwork: tt.defaultNetwork}}
		template := &v1alpha1.HypervisorMachineTemplate{Spec: v1alpha1.HypervisorMachineTemplateSpec{Template: tt.source, Network: tt.network}}

		if err := tenancy.CheckTemplate(entry, cluster, template); errclass.ReasonOf(err, "") != tt.reason {
			t.Errorf("%s: error %v, want reason %q", name, err, tt.reason)
		}
	}
}

// A template without a domain has the cluster's domain. The entry has to list that domain, too.
func TestTenancyDefaultDomain(t *testing.T) {
	t.Parallel()

	in := tenancyCluster()
	in.Spec.DNS = &v1alpha1.HypervisorDNS{Domain: "ci.example.com"}

	for allowed, want := range map[string]string{"ci.example.com": "", "team-a.example.com": tenancy.ReasonDomain} {
		entry := &v1alpha1.NamespaceAccess{Domains: []string{allowed}}

		err := tenancy.CheckTemplate(entry, in, &v1alpha1.HypervisorMachineTemplate{})
		if errclass.ReasonOf(err, "") != want {
			t.Errorf("%s: error %v, want reason %q", allowed, err, want)
		}
	}
}

func TestTenancyName(t *testing.T) {
	t.Parallel()

	team := &v1alpha1.NamespaceAccess{Domains: []string{"team-a.example.com"}}

	for name, tt := range map[string]struct {
		entry   *v1alpha1.NamespaceAccess
		fqdn    string
		allowed bool
	}{
		"no entry":                 {nil, "www.example.com", true},
		"no limits":                {&v1alpha1.NamespaceAccess{}, "www.example.com", true},
		"in the domain":            {team, "vm1.team-a.example.com.", true},
		"below":                    {team, "vm1.ci.team-a.example.com", true},
		"the domain itself":        {team, "team-a.example.com", false},
		"another":                  {team, "www.example.com", false},
		"one that ends like it":    {team, "vm1.xteam-a.example.com", false},
		"the top of another's":     {team, "com", false},
		"a name without a domain":  {team, "vm1", false},
		"a domain that is a label": {&v1alpha1.NamespaceAccess{Domains: []string{"lan"}}, "vm1.lan", true},
	} {
		err := tenancy.CheckDNSName(tt.entry, "prod", "ci", tt.fqdn)
		if (err == nil) != tt.allowed || err != nil && errclass.ReasonOf(err, "") != tenancy.ReasonDomain {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestTenancyQuota(t *testing.T) {
	t.Parallel()

	quota := &v1alpha1.NamespaceAccess{Quota: &v1alpha1.NamespaceQuota{
		Machines: new(int32(2)), CPU: new(int32(8)), Memory: new(resource.MustParse("4Gi")),
	}}

	for name, tt := range map[string]struct {
		entry    *v1alpha1.NamespaceAccess
		machines []v1alpha1.PlacedResources
		allowed  bool
	}{
		"no quota":        {&v1alpha1.NamespaceAccess{}, make([]v1alpha1.PlacedResources, 9), true},
		"all of it":       {quota, []v1alpha1.PlacedResources{{CPU: 4, Memory: resource.MustParse("2Gi")}, {CPU: 4, Memory: resource.MustParse("2Gi")}}, true},
		"machines":        {quota, make([]v1alpha1.PlacedResources, 3), false},
		"cores":           {quota, []v1alpha1.PlacedResources{{CPU: 9}}, false},
		"memory":          {quota, []v1alpha1.PlacedResources{{Memory: resource.MustParse("4097Mi")}}, false},
		"none at all":     {&v1alpha1.NamespaceAccess{Quota: &v1alpha1.NamespaceQuota{Machines: new(int32(0))}}, make([]v1alpha1.PlacedResources, 1), false},
		"one of them set": {&v1alpha1.NamespaceAccess{Quota: &v1alpha1.NamespaceQuota{CPU: new(int32(1))}}, make([]v1alpha1.PlacedResources, 9), true},
	} {
		var taken tenancy.Usage
		for _, machine := range tt.machines {
			taken.Add(machine)
		}

		err := tenancy.CheckQuota(tt.entry, "prod", "ci", taken)
		if (err == nil) != tt.allowed || err != nil && errclass.ClassOf(err) != errclass.Resource {
			t.Errorf("%s: error %v, want allowed %v", name, err, tt.allowed)
		}
	}
}
