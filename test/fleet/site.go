// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/pve"
)

// Site is an additional hypervisor of a fleet, with its own HypervisorCluster, Secret and template.
type Site struct {
	PVE      *pve.Server
	Cluster  *v1alpha1.HypervisorCluster
	Template *v1alpha1.HypervisorMachineTemplate
	// Secret holds the credentials, under the keys tokenId and tokenSecret.
	Secret string
}

// NewSite creates a site and its objects with the name. The functions change edit the HypervisorCluster
// before it is created.
func (f *Fleet) NewSite(name string, model pve.Model, change ...func(*v1alpha1.HypervisorCluster)) *Site {
	f.T.Helper()

	site := &Site{PVE: f.startPVE(model), Secret: name}
	f.createSecret(name, map[string]string{"tokenId": pve.DefaultTokenID, "tokenSecret": pve.DefaultSecret})

	id, secret := newSecretSource(name, "tokenId"), newSecretSource(name, "tokenSecret")
	site.Cluster = f.NewCluster()
	site.Cluster.Name = f.Namespace + "-" + name
	site.Cluster.Spec.Endpoint = site.PVE.URL() + "/api2/json"
	site.Cluster.Spec.Credentials = v1alpha1.HypervisorCredentials{TokenID: &id, TokenSecret: &secret}
	site.Cluster.Spec.TLS = &v1alpha1.HypervisorTLS{Fingerprint: site.PVE.Fingerprint()}
	site.Template = site.NewTemplate(f, name)

	for _, apply := range change {
		apply(site.Cluster)
	}

	f.mu.Lock()
	f.sites = append(f.sites, site.PVE)
	f.mu.Unlock()

	f.CreateCluster(site.Cluster)
	f.Create(site.Template)

	return site
}

// Servers returns the fleet's hypervisor and those of its sites.
func (f *Fleet) Servers() []*pve.Server {
	f.mu.Lock()
	defer f.mu.Unlock()

	return append([]*pve.Server{f.PVE}, f.sites...)
}

// NewTemplate returns another template of the site.
func (s *Site) NewTemplate(f *Fleet, name string) *v1alpha1.HypervisorMachineTemplate {
	template := f.NewTemplate()
	template.Name = name
	template.Spec.HypervisorClusterRef.Name = s.Cluster.Name

	return template
}

// NewClaim returns a claim for a machine of the site.
func (s *Site) NewClaim(f *Fleet, name string) *v1alpha1.MachineClaim {
	claim := f.NewClaim(name)
	claim.Spec.TemplateRef.Name = s.Template.Name

	return claim
}
