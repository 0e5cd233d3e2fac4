// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/test/brokers"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/libvirt"
)

const (
	clientSecret = "libvirt-client"
	// poolSize is the size of a pool that a test fills.
	poolSize = 256 << 20
	// machineMemory and machineDisk are the size of a machine.
	machineMemory, machineDisk = "1Gi", "4Gi"
)

// Hosts are three libvirtd processes that serve TLS, as the hosts of one cluster. The pool of the last one can be
// filled.
type Hosts struct {
	Names  []string
	ByName map[string]*libvirt.Host

	ca     *brokers.CA
	client *brokers.Cert
}

// StartHosts starts the hosts until the test ends. Each has the template. The console output of their machines is
// written to the directory logs.
func StartHosts(t testing.TB, images Images, logs string) *Hosts {
	t.Helper()

	h := &Hosts{Names: []string{"host-1", "host-2", "host-3"}, ByName: map[string]*libvirt.Host{}, ca: brokers.NewCA(t)}
	server := h.ca.IssueServer(t)
	h.client = h.ca.IssueClient(t, "operator")

	var image libvirt.Image

	for i, name := range h.Names {
		options := libvirt.Options{TLS: &libvirt.TLS{CAFile: h.ca.File, CertFile: server.File, KeyFile: server.KeyFile}}
		if i == len(h.Names)-1 {
			options.PoolSize = poolSize
		}

		host := libvirt.Start(t, options)
		h.ByName[name] = host

		t.Cleanup(func() { KeepConsole(t, host, filepath.Join(logs, name+".log")) })

		var err error
		if i == 0 {
			image, err = host.Publish(images.NewLibvirt(t))
		}

		if err := errors.Join(err, host.CreateTemplate(image)); err != nil {
			t.Fatal(err)
		}
	}

	return h
}

// KeepConsole copies the console output of a host's machines to a file, if there is any.
func KeepConsole(t testing.TB, host *libvirt.Host, file string) {
	t.Helper()

	content, err := os.ReadFile(host.ConsoleLog())
	if errors.Is(err, os.ErrNotExist) {
		return
	}

	if err := errors.Join(err, os.WriteFile(file, content, 0o600)); err != nil {
		t.Error(err)
	}
}

// NewFleet returns a fleet with the hosts as its cluster, and a pool of so many machines.
func (h *Hosts) NewFleet(t testing.TB, f *fleet.Fleet, maxReplicas int32) {
	t.Helper()

	read := func(file string) string {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}

		return string(content)
	}

	f.Create(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: clientSecret},
		StringData: map[string]string{"tls.crt": read(h.client.File), "tls.key": read(h.client.KeyFile)},
	})

	cluster := f.NewCluster()
	cluster.Spec = v1alpha1.HypervisorClusterSpec{
		Provider: v1alpha1.ProviderLibvirt,
		Credentials: v1alpha1.HypervisorCredentials{
			ClientCert: newSecretSource("tls.crt"), ClientKey: newSecretSource("tls.key"),
		},
		TLS: &v1alpha1.HypervisorTLS{CABundle: []byte(read(h.ca.File))},
		// This computer may have KVM, but its guests need not run under it.
		Libvirt: &v1alpha1.LibvirtCluster{DomainType: "qemu"},
	}

	for _, name := range h.Names {
		cluster.Spec.Libvirt.Hosts = append(cluster.Spec.Libvirt.Hosts, v1alpha1.LibvirtHost{
			Name: name, URI: h.ByName[name].TLSURI(), StoragePool: libvirt.PoolName,
		})
	}

	f.CreateCluster(cluster)
	f.Create(NewLibvirtTemplate(t, f))
	f.Create(f.NewPool(maxReplicas))
}

func newSecretSource(key string) *v1alpha1.SecretValueSource {
	return &v1alpha1.SecretValueSource{SecretKeyRef: v1alpha1.SecretKeySelector{Name: clientSecret, Key: key}}
}

// NewLibvirtTemplate returns the fleet's template for machines on libvirt hosts.
func NewLibvirtTemplate(t testing.TB, f *fleet.Fleet) *v1alpha1.HypervisorMachineTemplate {
	t.Helper()

	template := f.NewTemplate()
	disk := resource.MustParse(machineDisk)
	template.Spec.Template = v1alpha1.TemplateSource{Libvirt: &v1alpha1.LibvirtTemplate{Domain: libvirt.TemplateName}}
	template.Spec.Resources = v1alpha1.MachineResources{CPU: processors, Memory: resource.MustParse(machineMemory), Disk: &disk}
	template.Spec.Bootstrap.Config.GitHub.APIURL = StartForgeProxy(t, f)

	return template
}

// EventuallyClean waits until nothing is left: no claims and no runners, and no domains and volumes on the hosts.
func (h *Hosts) EventuallyClean(f *fleet.Fleet) {
	f.T.Helper()
	f.EventuallyClean()
	f.Eventually("the deletion of all domains and volumes", func() (bool, string) {
		var left []string

		for _, name := range h.Names {
			found, err := h.ByName[name].ListMachines()
			if err != nil {
				return false, err.Error()
			}

			left = append(left, found...)
		}

		return len(left) == 0, strings.Join(left, ", ")
	})
}
