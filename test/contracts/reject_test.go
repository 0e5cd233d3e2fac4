// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package contracts_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// rejection is a change that makes a valid object invalid.
type rejection struct {
	why    string
	change change
	// path is the path of the field, and want the message of the API server.
	path, want string
}

// pattern is how the API server refuses what a bare pattern does not match.
const pattern = "should match"

// unit ends the message about a quantity.
const unit = ": write a number and the unit Mi, Gi or Ti, such as "

// listRejections has, for each kind, at least one row for each of its rules.
func listRejections() map[string][]rejection {
	return map[string][]rejection{
		baseCluster: slices.Concat(listClusterRejections(), listClusterNetworkRejections(), listDNSRejections(), listOtherProviderRejections()),
		baseTemplate: slices.Concat(listTemplateRejections(), listGitHubRejections(), listNetworkRejections(),
			listMachinePoolRejections(), listKubeVirtTemplateRejections(), listLibvirtTemplateRejections(), listExternalTemplateRejections(),
			listCacheRejections()),
		baseKubeVirt:     listKubeVirtRejections(),
		baseLibvirt:      listLibvirtRejections(),
		baseExternal:     listExternalRejections(),
		basePool:         listPoolRejections(),
		baseClaim:        listClaimRejections(),
		baseRegistration: listRegistrationRejections(),

		baseStaticPool: listNodePoolRejections(), baseMachine: listKubevirtMachineRejections(),
		baseMachineTemplate: listMachineRejections("spec.template.spec"),
		baseBridge:          listBridgeRejections(),
		baseFleet:           listFleetRejections(), baseLinux: listLinuxRejections(), baseMac: listMacRejections(),
	}
}

func TestInvalidObjectsAreRejected(t *testing.T) {
	t.Parallel()

	for base, rows := range listRejections() {
		for _, row := range rows {
			t.Run(parseObject(t, base).GetKind()+"/"+row.why, func(t *testing.T) {
				t.Parallel()

				err := newStrictClient().Create(t.Context(), row.change.apply(t, base), client.DryRunAll)
				if !apierrors.IsInvalid(err) {
					t.Fatalf("want the object to be invalid, got: %v", err)
				}

				for _, want := range []string{row.path, row.want} {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("want %q in:\n%v", want, err)
					}
				}

				if strings.Contains(err.Error(), pattern) && row.want != pattern {
					t.Errorf("a regular expression does not say what to write:\n%v", err)
				}
			})
		}
	}
}

const credentials = "spec.credentials"

func listClusterRejections() []rejection {
	token := newSecretRef("pve", "token")

	return []rejection{
		{"plain http endpoint", change{"spec.endpoint": "http://pve:8006/api2/json"}, "spec.endpoint", "endpoint must be an https URL such as"},
		{"endpoint without scheme", change{"spec.endpoint": "pve.example.com:8006"}, "spec.endpoint", "endpoint must be an https URL such as"},
		{"endpoint without host", change{"spec.endpoint": "https:///api2/json"}, "spec.endpoint", "endpoint must be an https URL such as"},
		{"endpoint is a path", change{"spec.endpoint": "/api2/json"}, "spec.endpoint", "endpoint must be an https URL such as"},
		{"password in endpoint", change{"spec.endpoint": "https://admin:secret@pve:8006/"}, "spec.endpoint", "endpoint must not contain credentials"},
		{"unknown provider", change{"spec.provider": "vmware"}, "spec.provider", `supported values: "proxmox", "kubevirt", "libvirt", "external"`},
		{"no provider", change{"spec.provider": removed{}}, "spec.provider", "Required value"},

		{"token id alone", change{"spec.credentials.tokenSecret": removed{}}, credentials, "tokenId and tokenSecret belong together"},
		{"token secret alone", change{"spec.credentials.tokenId": removed{}}, credentials, "tokenId and tokenSecret belong together"},
		{"user without password", change{credentials: anyMap{"username": token}}, credentials, "username and password belong together"},
		{"password without user", change{credentials: anyMap{"password": token}}, credentials, "username and password belong together"},
		{"certificate without key", change{"spec.credentials.clientCert": token}, credentials, "clientCert and clientKey belong together"},
		{"token and password", change{"spec.credentials.username": token, "spec.credentials.password": token}, credentials, "choose one of API token"},
		{"no credentials", change{credentials: anyMap{}}, credentials, "choose a way to authenticate"},
		{"Secret name", change{"spec.credentials.tokenId": newSecretRef("My Secret", "k")}, "tokenId.secretKeyRef.name", "name must be the name of a Secret"},
		{"Secret key", change{"spec.credentials.tokenId": newSecretRef("pve", "a key")}, "tokenId.secretKeyRef.key", "key must be a key of a Secret"},
		{"Secret namespace", change{"spec.credentials.tokenId.secretKeyRef.namespace": "A/B"}, "tokenId.secretKeyRef.namespace", "namespace must be the name of a namespace"},

		{"fingerprint is SHA-1", change{"spec.tls": anyMap{"fingerprint": "AA:BB:CC"}}, "spec.tls.fingerprint", "fingerprint must be a SHA-256"},
		{"fingerprint without colons", change{"spec.tls": anyMap{"fingerprint": strings.Repeat("A", 64)}}, "spec.tls.fingerprint", "fingerprint must be a SHA-256"},
		{"two kinds of trust", change{"spec.tls": anyMap{"caBundle": "YQ==", "insecureSkipVerify": true}}, "spec.tls", "choose at most one of caBundle"},
		{"bundle is not base64", change{"spec.tls": anyMap{"caBundle": "---"}}, "spec.tls.caBundle", "byte"},
	}
}

func listClusterNetworkRejections() []rejection {
	return []rejection{
		{"node with a slash", change{"spec.nodes": list{"pve/../1"}}, "spec.nodes", "nodes must be names of nodes"},
		{"node twice", change{"spec.nodes": list{"pve-1", "pve-1"}}, "spec.nodes[1]", "Duplicate value"},
		{"storage with a colon", change{"spec.defaultStorage": "local:iso"}, "spec.defaultStorage", "defaultStorage must be the ID of a storage"},
		{"ISO storage with a slash", change{"spec.isoStorage": "a/b"}, "spec.isoStorage", "isoStorage must be the ID of a storage"},
		{"bridge with options", change{"spec.defaultNetwork": "vmbr0,tag=3"}, "spec.defaultNetwork", "defaultNetwork must be the name of a bridge"},
		{"pool with a space", change{"spec.resourcePool": "my pool"}, "spec.resourcePool", "resourcePool must be the ID of a pool"},
		{"range upside down", change{"spec.vmIdRange": anyMap{"min": int64(300), "max": int64(200)}}, "spec.vmIdRange", "vmIdRange.min must not be above"},
		{"reserved ids", change{"spec.vmIdRange": anyMap{"min": int64(1), "max": int64(200)}}, "spec.vmIdRange.min", "greater than or equal to 100"},
		{
			"namespaces by nothing", change{"spec.allowedNamespaces": list{anyMap{"templates": list{"debian"}}}},
			"spec.allowedNamespaces", "choose the namespaces by exactly one of names and selector",
		},
		{
			"namespaces by both", change{"spec.allowedNamespaces": list{anyMap{"names": list{"ci"}, "selector": anyMap{}}}},
			"spec.allowedNamespaces", "choose the namespaces by exactly one of names and selector",
		},
		{"no namespaces", change{"spec.allowedNamespaces": list{}}, "spec.allowedNamespaces", "at least 1 items"},
		{
			"VLANs upside down", change{"spec.allowedNamespaces": list{
				anyMap{"names": list{"ci"}, "vlans": list{anyMap{"min": int64(3), "max": int64(2)}}},
			}},
			"spec.allowedNamespaces", "vlans: min must not be above max",
		},
		{"one address for namespaces", accessTo("addresses", list{"10.0.0.0/24", "10.0.0.5"}), "allowedNamespaces[0].addresses[1]", "write a CIDR such as 192.168.9.0/24, or a first and a last address such as"},
		{"domain of namespaces with a dot at its end", accessTo("domains", list{"ci.example.com."}), "allowedNamespaces[0].domains[0]", "write a DNS name without a trailing dot, such as ci.example.com"},
		{"quota with a unit of disks", accessTo("quota", anyMap{"memory": "64GB"}), "allowedNamespaces[0].quota.memory", pattern},
		{"tag key with a slash", change{"spec.tags": anyMap{"a/b": "c"}}, "spec.tags", "tags must have keys of letters"},
		{"tag value with a blank", change{"spec.tags": anyMap{"a": "b c"}}, "spec.tags", "tags must have values of letters"},
		{"tag value too long", change{"spec.tags": anyMap{"a": strings.Repeat("b", 64)}}, "spec.tags", "at most 63 characters"},

		{"DNS server by name", change{"spec.dns": anyMap{"servers": list{"dns.example.com"}}}, "spec.dns.servers", "dns.servers must be IP addresses"},
		{"DNS domain", change{"spec.dns": anyMap{"domain": "not a domain"}}, "spec.dns.domain", "dns.domain must be a DNS name"},
		{"registration without a service", change{"spec.dns": anyMap{"registerVMs": true, "domain": "a.b"}}, "spec.dns", "dns.registerVMs needs"},
		{
			"unknown DNS service", change{"spec.dns": anyMap{"dnsProvider": anyMap{"type": "bind"}}},
			"spec.dns.dnsProvider.type", `supported values: "route53", "cloudflare", "rfc2136"`,
		},
		{
			"interval is no time", change{"spec.dns": anyMap{"validation": anyMap{"validateInterval": "often"}}},
			"spec.dns.validation.validateInterval", "validateInterval must be a time above zero",
		},
		{
			"interval is zero", change{"spec.dns": anyMap{"validation": anyMap{"validateInterval": "0s"}}},
			"spec.dns.validation.validateInterval", "validateInterval must be a time above zero",
		},
	}
}

// accessTo is one entry of a cluster's namespaces with a limit.
func accessTo(limit string, value any) change {
	return change{"spec.allowedNamespaces": list{anyMap{"names": list{"ci"}, limit: value}}}
}

const proxmox = "spec.template.proxmox"

func listTemplateRejections() []rejection {
	return []rejection{
		{"name too long for a label", change{"metadata.name": strings.Repeat("a", 64)}, "", "must have at most 63 characters"},
		{"cluster by URL", change{"spec.hypervisorClusterRef.name": "https://pve"}, "hypervisorClusterRef.name", "name must be the name of an object"},
		{"no template", change{"spec.template": anyMap{}}, "spec.template", "choose one of template.proxmox, template.kubevirt, template.libvirt and template.external"},
		{"neither id nor name", change{proxmox: anyMap{}}, proxmox, "exactly one of templateId, templateName and templateTags"},
		{"both id and name", change{proxmox + ".templateName": "ubuntu"}, proxmox, "exactly one of templateId, templateName and templateTags"},
		{"both id and tags", change{proxmox + ".templateTags": list{"runner"}}, proxmox, "exactly one of templateId, templateName and templateTags"},
		{"newest without tags", change{proxmox + ".newest": true}, proxmox, "newest is only allowed with templateTags"},
		{"tag with a comma", change{proxmox: anyMap{"templateTags": list{"a,b"}}}, proxmox + ".templateTags", "templateTags must have letters, digits"},
		{"storage with a linked clone", change{proxmox + ".storage": "ceph"}, proxmox, "set linkedClone to false or leave storage out"},
		{"no clone", change{proxmox + ".clone": false}, proxmox + ".clone", "clone must be true"},
		{"storage by path", change{proxmox + ".storage": "/mnt", proxmox + ".linkedClone": false}, proxmox + ".storage", "storage must be the ID of a storage"},
		{"snippets by path", change{proxmox + ".snippetsStorage": "/mnt"}, proxmox + ".snippetsStorage", "snippetsStorage must be the ID"},
		{"builtin without snippets", change{proxmox + ".cloudInitSource": "builtin"}, proxmox, "cloudInitSource builtin needs snippetsStorage"},
		{"unknown source", change{proxmox + ".cloudInitSource": "floppy"}, proxmox + ".cloudInitSource", `"nocloud", "builtin"`},

		{"no processor", change{"spec.resources.cpu": int64(0)}, "spec.resources.cpu", "greater than or equal to 1"},
		{"memory without a unit", change{"spec.resources.memory": int64(8)}, "spec.resources.memory", "memory must be at least 64Mi" + unit + "8Gi"},
		{"memory as a small text", change{"spec.resources.memory": "8"}, "spec.resources.memory", "memory must be at least 64Mi" + unit + "8Gi"},
		{"memory as text", change{"spec.resources.memory": "much"}, "spec.resources.memory", "memory must be at least 64Mi" + unit + "8Gi"},
		{"memory with a unit of disks", change{"spec.resources.memory": "8GB"}, "spec.resources.memory", "memory must be at least 64Mi" + unit + "8Gi"},
		{"memory with an exponent", change{"spec.resources.memory": "1e999999999"}, "spec.resources.memory", "memory must be at least 64Mi" + unit + "8Gi"},
		{"disk with an exponent below one", change{"spec.resources.disk": "1e-999999999"}, "spec.resources.disk", "disk must be at least 1Mi" + unit + "50Gi"},
		{
			"more devices than a machine can have",
			change{"spec.resources.devices": list{anyMap{"name": "gpu", "count": int64(16)}, anyMap{"name": "nic"}}},
			"spec.resources.devices", "devices must be at most 16 in total",
		},
		{
			"device with a comma", change{"spec.resources.devices": list{anyMap{"name": "gpu,rombar=0"}}},
			"spec.resources.devices", "name must have letters, digits, '.', '_' and '-'",
		},
		{
			"the same device twice", change{"spec.resources.devices": list{anyMap{"name": "gpu"}, anyMap{"name": "gpu"}}},
			"spec.resources.devices", "Duplicate value",
		},
		{
			"unknown type of device", change{"spec.resources.devices": list{anyMap{"name": "gpu", "type": "usb"}}},
			"spec.resources.devices", `"gpu", "pci"`,
		},
		{"disk without a unit", change{"spec.resources.disk": int64(50)}, "spec.resources.disk", "disk must be at least 1Mi" + unit + "50Gi"},

		{"unknown attestation", change{"spec.attestation": anyMap{"method": "trust"}}, "spec.attestation.method", `"join-token", "tpm"`},
		{"token lifetime as text", change{"spec.attestation": anyMap{"config": anyMap{"joinTokenTTL": "soon"}}}, "joinTokenTTL", "joinTokenTTL must be a time above zero"},
		{"TPM elsewhere", change{"spec.attestation": anyMap{"config": anyMap{"tpmDevice": "tpm0"}}}, "tpmDevice", "tpmDevice must be a device file"},
		{"unknown bootstrap", change{"spec.bootstrap": anyMap{"method": "magic"}}, "spec.bootstrap.method", `"runner-token", "callback", "external-secrets"`},
		{"document's name of runner-token", change{"spec.bootstrap": anyMap{"method": "insecure"}}, "spec.bootstrap.method", "Unsupported value"},
		{"secrets manager that is not named", change{"spec.bootstrap": anyMap{"method": "external-secrets"}, "spec.attestation": anyMap{}}, "spec.bootstrap", "external-secrets needs bootstrap.config.externalSecrets"},
		{"secrets manager without an identity", changeSecretsManager(nil), "spec", "external-secrets needs attestation"},
		{
			"secrets manager for Buildkite",
			changeSecretsManager(change{"spec.attestation": anyMap{}, "spec.bootstrap.config.buildkite": anyMap{"credentials": newSecretRef("b", "t")}}),
			"spec.bootstrap", "external-secrets cannot be used with Buildkite",
		},
		{
			"secrets manager without a role", changeSecretsManager(change{"spec.attestation": anyMap{}, secrets + ".role": nil}), secrets,
			"externalSecrets.auth jwt needs externalSecrets.role",
		},
		{
			"secrets manager by name", changeSecretsManager(change{"spec.attestation": anyMap{}, secrets + ".address": "vault"}), secrets + ".address",
			"externalSecrets.address must be a URL",
		},
		{
			"secret outside", changeSecretsManager(change{"spec.attestation": anyMap{}, secrets + ".path": "a/../b"}), secrets + ".path",
			"externalSecrets.path must be a path",
		},
		{
			"key of nothing", changeSecretsManager(change{"spec.attestation": anyMap{}, secrets + ".keys": anyMap{"password": "p"}}), secrets + ".keys",
			"the keys of externalSecrets.keys must be jit_config",
		},
		{"unknown delivery", change{"spec.bootstrap": anyMap{"delivery": "post"}}, "spec.bootstrap.delivery", `"image", "download", "iso"`},

		{"label key", change{"spec.metadata": anyMap{"labels": anyMap{"a b": "c"}}}, "spec.metadata.labels", "labels must have valid Kubernetes keys"},
		{"label value", change{"spec.metadata": anyMap{"labels": anyMap{"a": "b c"}}}, "spec.metadata.labels", "labels must have values of letters"},
		{"long label value", change{"spec.metadata": anyMap{"labels": anyMap{"a": strings.Repeat("b", 64)}}}, "spec.metadata.labels", "at most 63 characters"},
		{"annotation key", change{"spec.metadata": anyMap{"annotations": anyMap{"a b": "c"}}}, "spec.metadata.annotations", "annotations must have valid"},
	}
}

const secrets = "spec.bootstrap.config.externalSecrets"

// changeSecretsManager sets a secrets manager with a change.
func changeSecretsManager(more change) change {
	out := change{
		"spec.bootstrap.method": "external-secrets", secrets + ".address": "https://vault.example.com:8200",
		secrets + ".role": "runner", secrets + ".path": "secret/data/runners",
	}
	maps.Copy(out, more)

	return out
}

const github = "spec.bootstrap.config.github"

func listGitHubRejections() []rejection {
	pat := func(more anyMap) change {
		settings := anyMap{"credentials": newSecretRef("github", "pat")}
		maps.Copy(settings, more)

		return change{github: settings}
	}
	runner := func(more anyMap) change { return pat(anyMap{"runner": more}) }
	app := anyMap{"appId": newSecretRef("a", "b"), "privateKey": newSecretRef("a", "c"), "installationId": newSecretRef("a", "d")}

	return []rejection{
		{"neither App nor token", change{github: anyMap{}}, github, "choose exactly one of app (a GitHub App) and credentials"},
		{"App and token", pat(anyMap{"app": app}), github, "choose exactly one of app (a GitHub App) and credentials"},
		{"App without key", change{github: anyMap{"app": anyMap{"appId": newSecretRef("a", "b")}}}, github + ".app.privateKey", "Required value"},
		{"repository alone", pat(anyMap{"repository": "app"}), github, "repository needs owner"},
		{"repository with owner", pat(anyMap{"owner": "a", "repository": "a/b"}), github + ".repository", "repository must be a name without its owner"},
		{"owner by URL", pat(anyMap{"owner": "https://github.com/a"}), github + ".owner", "owner must be the name of a user or an organization"},
		{"organisation by URL", pat(anyMap{"organization": "github.com/a"}), github + ".organization", "organization must be the name of an organization"},
		{"API without scheme", pat(anyMap{"apiUrl": "api.github.com"}), github + ".apiUrl", "apiUrl must be an https URL"},
		{"API in the clear", pat(anyMap{"apiUrl": "http://ghes.example.com/api/v3"}), github + ".apiUrl", "must be an https URL"},
		{"API is a path", pat(anyMap{"apiUrl": "/api/v3"}), github + ".apiUrl", "apiUrl must be an https URL"},
		{"token URL", pat(anyMap{"registrationUrls": anyMap{"repository": "/repos"}}), "registrationUrls.repository", "repository must be a URL such as"},
		{"organisation's token URL", pat(anyMap{"registrationUrls": anyMap{"organization": "x"}}), "registrationUrls.organization", "organization must be a URL such as"},
		{"runner URL", pat(anyMap{"runnerUrls": anyMap{"repository": "{owner}/{repo}"}}), "runnerUrls.repository", "repository must be a URL such as"},
		{"organisation's runner URL", pat(anyMap{"runnerUrls": anyMap{"organization": "x"}}), "runnerUrls.organization", "organization must be a URL such as"},
		{"unknown registration", pat(anyMap{"registration": "password"}), github + ".registration", `"jit", "token"`},
		{"download without checksum", runner(anyMap{"downloadUrl": "https://a/b.tgz"}), github + ".runner", "downloadUrl and downloadSha256 belong together"},
		{"checksum without download", runner(anyMap{"downloadSha256": strings.Repeat("a", 64)}), github + ".runner", "downloadUrl and downloadSha256 belong together"},
		{"download is a path", runner(anyMap{"downloadUrl": "b.tgz", "downloadSha256": strings.Repeat("a", 64)}), "downloadUrl", "downloadUrl must be a URL such as"},
		{"another system", change{"spec.bootstrap.os": "macos"}, "spec.bootstrap.os", "supported values"},
		{"linux with a runner for Windows", change{"spec.bootstrap.os": "linux", github + ".runner": anyMap{"os": "win"}}, "spec.bootstrap", "os linux contradicts config.github.runner.os win"},
		{"Windows from the ISO", change{"spec.bootstrap.os": "windows", "spec.bootstrap.delivery": "iso"}, "spec.bootstrap", "bootstrap.delivery must be image with os windows"},
		{"a version that is no release", runner(anyMap{"version": "newest"}), "runner.version", "version must be from-image, latest or a release such as 2.330.0"},
		{"a version without a download", runner(anyMap{"version": "2.330.0"}), github + ".runner", "a version needs downloadUrl and downloadSha256"},
		{
			"the newest with a checksum", runner(anyMap{"version": "latest", "downloadUrl": "https://a/{version}", "downloadSha256": strings.Repeat("a", 64)}),
			github + ".runner", "downloadSha256 is not allowed with version latest",
		},
		{
			"the newest from one file", runner(anyMap{"version": "latest", "downloadUrl": "https://a/b.tgz"}),
			github + ".runner", "downloadUrl must contain {version}",
		},
		{"short checksum", runner(anyMap{"downloadUrl": "https://a/b", "downloadSha256": "abc"}), "downloadSha256", "downloadSha256 must be a SHA-256"},
		{"relative install path", runner(anyMap{"installPath": "runner"}), "installPath", "installPath must be an absolute path"},
		{"relative work folder", runner(anyMap{"workDir": "work"}), "workDir", "workDir must be an absolute path"},
		{"script elsewhere", runner(anyMap{"configScript": "../evil.sh"}), "configScript", "configScript must be the name of a file in installPath"},
		{"run script elsewhere", runner(anyMap{"runScript": "/bin/sh"}), "runScript", "runScript must be the name of a file in installPath"},
		{"a system without a bootstrap service", runner(anyMap{"os": "osx"}), "runner.os", "os must be linux or win"},
		{"unknown system", runner(anyMap{"os": "beos"}), "runner.os", `"linux", "osx", "win"`},
		{"Go's name of an architecture", runner(anyMap{"arch": "amd64"}), "runner.arch", `"x64", "arm64", "arm"`},
		{"enterprise by URL", pat(anyMap{"enterprise": "https://github.com/enterprises/a"}), "github.enterprise", "enterprise must be the slug of an enterprise"},
		{
			"enterprise's runners nowhere", pat(anyMap{"runnerUrls": anyMap{"enterprise": "a"}}), "runnerUrls.enterprise",
			"enterprise must be a URL such as",
		},
		{
			"enterprise's tokens nowhere", pat(anyMap{"registrationUrls": anyMap{"enterprise": "a"}}), "registrationUrls.enterprise",
			"enterprise must be a URL such as",
		},
		{"Buildkite by name", changeBootstrap("buildkite", anyMap{"endpoint": "buildkite"}), "buildkite.endpoint", "buildkite.endpoint must be an https URL"},
		{"Buildkite's agent with a relative path", changeBootstrap("buildkite", anyMap{"program": "agent"}), "buildkite.program", "buildkite.program must be an absolute path"},
		{"Buildkite's builds with a relative path", changeBootstrap("buildkite", anyMap{"workDir": "work"}), "buildkite.workDir", "buildkite.workDir must be an absolute path"},
		{"GitLab's runner with a relative path", changeBootstrap("gitlab", anyMap{"program": "runner"}), "gitlab.program", "gitlab.program must be an absolute path"},
		{"GitLab's builds with a relative path", changeBootstrap("gitlab", anyMap{"workDir": "work"}), "gitlab.workDir", "gitlab.workDir must be an absolute path"},
		{"Forgejo's runner with a relative path", changeBootstrap("forgejo", anyMap{"program": "runner"}), "forgejo.program", "program must be an absolute path"},
		{"Gitea's work folder with a relative path", changeBootstrap("gitea", anyMap{"workDir": "work"}), "gitea.workDir", "workDir must be an absolute path"},
		{"Secret name", pat(anyMap{"credentials": newSecretRef("A B", "k")}), "secretKeyRef.name", "name must be the name of a Secret"},
		{"Secret key", pat(anyMap{"credentials": newSecretRef("a", "a/b")}), "secretKeyRef.key", "key must be a key of a Secret"},
		{
			"Secret namespace", pat(anyMap{"credentials": anyMap{"secretKeyRef": anyMap{"name": "a", "key": "b", "namespace": "-"}}}),
			"secretKeyRef.namespace", "namespace must be the name of a namespace",
		},
	}
}

// changeBootstrap sets a template's bootstrap of a platform with one token.
func changeBootstrap(platform string, settings anyMap) change {
	settings["credentials"] = newSecretRef("a", "b")

	return change{"spec.bootstrap": anyMap{"config": anyMap{platform: settings}}}
}

const static = "spec.network.static"

func listNetworkRejections() []rejection {
	address := func(ip, mask, gateway string) change {
		settings := anyMap{"ipAddress": ip, "netmask": mask}
		if gateway != "" {
			settings["gateway"] = gateway
		}

		return change{"spec.network": anyMap{"mode": "static", "static": settings}}
	}

	return []rejection{
		{"unknown mode", change{"spec.network": anyMap{"mode": "bootp"}}, "spec.network.mode", `"dhcp", "static", "cloud-init"`},
		{"static without address", change{"spec.network": anyMap{"mode": "static"}}, "spec.network", "network.mode static needs network.static"},
		{"cloud-init without data", change{"spec.network": anyMap{"mode": "cloud-init"}}, "spec", "network.mode cloud-init needs cloudInit.networkData"},
		{"bridge with options", change{"spec.network": anyMap{"bridge": "vmbr0,firewall=0"}}, "spec.network.bridge", "bridge must be the name of a bridge"},
		{"interface with a blank", change{"spec.network": anyMap{"interface": "ens18 up"}}, "spec.network.interface", "interface must be the name of a network interface"},
		{"VLAN 0", change{"spec.network": anyMap{"vlan": int64(0)}}, "spec.network.vlan", "greater than or equal to 1"},
		{"VLAN 4095", change{"spec.network": anyMap{"vlan": int64(4095)}}, "spec.network.vlan", "less than or equal to 4094"},
		{"lease as text", change{"spec.network": anyMap{"dhcp": anyMap{"leaseTime": "forever"}}}, "leaseTime", "leaseTime must be a time above zero"},
		{"domain", change{"spec.network": anyMap{"dns": anyMap{"domain": "-"}}}, "spec.network.dns.domain", "dns.domain must be a DNS name"},
		{"server by name", change{"spec.network": anyMap{"dns": anyMap{"servers": list{"dns"}}}}, "spec.network.dns.servers", "dns.servers must be IP addresses"},
		{"address with prefix", address("10.0.0.5/24", "24", ""), static + ".ipAddress", "static.ipAddress must be an IP address without a prefix"},
		{"mask as text", address("10.0.0.5", "wide", ""), static + ".netmask", "static.netmask must be a mask such as"},
		{"prefix beyond IPv4", address("10.0.0.5", "33", ""), static, "static.netmask must match static.ipAddress"},
		{"prefix beyond IPv6", address("fd00::5", "129", ""), static, "static.netmask must match static.ipAddress"},
		{"IPv4 mask for IPv6", address("fd00::5", "255.255.255.0", ""), static, "static.netmask must match static.ipAddress"},
		{"gateway by name", address("10.0.0.5", "24", "router"), static + ".gateway", "static.gateway must be an IP address"},
		{"gateway of another family", address("10.0.0.5", "24", "fd00::1"), static, "static.gateway must be of the same address family"},
		{
			"servers by name",
			change{"spec.network": anyMap{"mode": "static", "static": anyMap{"ipAddress": "10.0.0.5", "netmask": "24", "dns": list{"dns"}}}},
			static + ".dns", "static.dns must be IP addresses",
		},
		{"address and pool", changeStaticNetwork(anyMap{"ipAddress": "10.0.0.5", "netmask": "24", "pool": newAddressPool(nil)}), static, "choose one of static.ipAddress"},
		{"neither address nor pool", changeStaticNetwork(anyMap{"netmask": "24"}), static, "choose one of static.ipAddress"},
		{"address without mask", changeStaticNetwork(anyMap{"ipAddress": "10.0.0.5"}), static, "static.ipAddress needs static.netmask"},
		{"pool with the address's gateway", changeStaticNetwork(anyMap{"gateway": "10.0.0.1", "pool": newAddressPool(nil)}), static, "are only allowed with static.ipAddress"},
	}
}

// changeStaticNetwork sets a template's static network.
func changeStaticNetwork(settings anyMap) change {
	return change{"spec.network": anyMap{"mode": "static", "static": settings}}
}

// newAddressPool returns a pool of addresses with changes.
func newAddressPool(changes anyMap) anyMap {
	pool := anyMap{"addresses": list{"10.0.0.0/24"}}
	maps.Copy(pool, changes)

	return pool
}

// listMachinePoolRejections has the rejections of pools of MachineClaims' addresses.
func listMachinePoolRejections() []rejection {
	const pool = static + ".pool"

	with := func(changes anyMap) change { return changeStaticNetwork(anyMap{"pool": newAddressPool(changes)}) }

	return []rejection{
		{"no addresses", with(anyMap{"addresses": list{}}), pool + ".addresses", "at least 1"},
		{"address as text", with(anyMap{"addresses": list{"all"}}), pool + ".addresses[0]", "write a CIDR (10.0.0.0/24)"},
		{"range of two families", with(anyMap{"addresses": list{"10.0.0.1-fd00::1"}}), pool + ".addresses[0]", "both ends of a range must be of one address family"},
		{"bits beyond the prefix", with(anyMap{"addresses": list{"10.0.0.5/24"}}), pool + ".addresses[0]", "a CIDR must not have bits beyond its prefix"},
		{"prefix length without IPv4", with(anyMap{"addresses": list{"fd00::/64"}, "prefixLengthV4": int64(24)}), pool, "prefixLengthV4 needs IPv4 addresses"},
		{"prefix length without IPv6", with(anyMap{"prefixLengthV6": int64(64)}), pool, "prefixLengthV6 needs IPv6 addresses"},
		{"bare IPv4 address", with(anyMap{"addresses": list{"10.0.0.5"}}), pool + ".addresses[0]", "write a CIDR (10.0.0.0/24)"},
		{"bare IPv6 exclusion", with(anyMap{"excludedAddresses": list{"fd00::5"}}), pool + ".excludedAddresses[0]", "write a CIDR (10.0.0.0/24)"},
		{"three gateways", with(anyMap{"gateway": list{"10.0.0.1", "10.0.0.2", "10.0.0.3"}}), pool + ".gateway", "Too many: 3: must have at most 2 items"},
		{"two gateways", with(anyMap{"gateway": list{"10.0.0.1", "10.0.0.2"}}), pool + ".gateway", "gateway must have at most one address of each address family"},
		{"gateway by name", with(anyMap{"gateway": list{"router"}}), pool + ".gateway[0]", "it must be an IP address such as"},
		{"name server by name", with(anyMap{"nameservers": list{"dns"}}), pool + ".nameservers[0]", "it must be an IP address such as"},
	}
}

// listWorkloadRejections has the rejections of every kind with a workload at the path.
func listWorkloadRejections(path string) []rejection {
	ofGitHub := func(settings anyMap) change {
		return change{path: anyMap{"type": "github-actions", "config": anyMap{"github": settings}}}
	}
	ofGitLab := func(settings anyMap) change {
		return change{path: anyMap{"type": "gitlab-ci", "config": anyMap{"gitlab": settings}}}
	}
	ofBuildkite := func(tag string) change {
		return change{path: anyMap{"type": "buildkite", "config": anyMap{"buildkite": anyMap{"organization": "a", "tags": list{tag}}}}}
	}
	ofForgejo := func(settings anyMap) change {
		all := anyMap{"url": "https://git.example.com", "labels": list{"linux"}}
		maps.Copy(all, settings)

		return change{path: anyMap{"type": "forgejo-actions", "config": anyMap{"forgejo": all}}}
	}
	ofGeneric := func(settings anyMap) change {
		all := anyMap{"source": "nightly", "command": list{"/usr/bin/make"}}
		maps.Copy(all, settings)

		return change{path: anyMap{"type": "generic", "config": anyMap{"generic": all}}}
	}
	webhook := func(ref anyMap) change {
		settings := ofGeneric(anyMap{})[path].(anyMap)
		settings["webhook"] = anyMap{"secret": anyMap{"secretKeyRef": ref}}

		return change{path: settings}
	}

	return []rejection{
		{"unknown platform", change{path: anyMap{"type": "jenkins"}}, path + ".type", `"github-actions", "gitlab-ci", "buildkite", "forgejo-actions", "gitea-actions", "generic"`},
		{"GitHub without settings", change{path: anyMap{"type": "github-actions"}}, path, "github-actions needs config.github"},
		{"GitLab without settings", change{path: anyMap{"type": "gitlab-ci"}}, path, "gitlab-ci needs config.gitlab"},
		{"Buildkite without settings", change{path: anyMap{"type": "buildkite"}}, path, "buildkite needs config.buildkite"},
		{"Forgejo without settings", change{path: anyMap{"type": "forgejo-actions"}}, path, "forgejo-actions needs config.forgejo"},
		{"Gitea without settings", change{path: anyMap{"type": "gitea-actions"}}, path, "gitea-actions needs config.gitea"},
		{"Forgejo by name", ofForgejo(anyMap{"url": "git.example.com"}), "forgejo.url", "url must be an https URL (http only on loopback) such as https://git"},
		{"Forgejo's repository without owner", ofForgejo(anyMap{"repository": "app"}), "forgejo.repository", "repository must be owner/name"},
		{"Forgejo's organisation by URL", ofForgejo(anyMap{"organization": "https://a"}), "forgejo.organization", "organization must be the name of an organization"},
		{"repository and organisation", ofForgejo(anyMap{"repository": "a/b", "organization": "a"}), "config.forgejo", "choose at most one of repository and organization"},
		{"labels with an image", ofForgejo(anyMap{"labels": list{"linux:docker://a"}}), "forgejo.labels[0]", "write a label without spaces, commas and colons, such as linux"},
		{"labels in one text for Forgejo", ofForgejo(anyMap{"labels": list{"linux x64"}}), "forgejo.labels[0]", "write a label without spaces, commas and colons, such as linux"},
		{"no labels for Forgejo", ofForgejo(anyMap{"labels": list{}}), "forgejo.labels", "should have at least 1 items"},
		{"GitLab's tags in one text", ofGitLab(anyMap{"url": "https://g", "tags": list{"linux,docker"}}), "gitlab.tags[0]", "a tag must not contain a comma: write each tag as a separate item"},
		{"Buildkite's tags in one text", ofBuildkite("os=linux,docker=true"), "buildkite.tags[0]", "write a tag as key=value, without commas, such as os=linux"},
		{"Buildkite's tag without a key", ofBuildkite("=linux"), "buildkite.tags[0]", "write a tag as key=value, without commas, such as os=linux"},
		{"Buildkite's tag of blanks", ofBuildkite(" "), "buildkite.tags[0]", "write a tag as key=value, without commas, such as os=linux"},
		{"Buildkite's queue as a tag", ofBuildkite("queue=linux"), "buildkite.tags[0]", "a tag must not name the queue: set buildkite.queue instead"},
		{"Buildkite's queue without a name", ofBuildkite("queue"), "buildkite.tags[0]", "a tag must not name the queue: set buildkite.queue instead"},
		{"generic without settings", change{path: anyMap{"type": "generic"}}, path, "generic needs config.generic"},
		{"other platform's settings", change{path: anyMap{"type": "gitlab-ci", "config": anyMap{"github": anyMap{}}}}, path, "gitlab-ci needs config.gitlab"},
		{"labels in one text", ofGitHub(anyMap{"labels": list{"linux,x64"}}), path + ".config.github.labels", "labels must not contain a comma"},
		{"organisation by URL", ofGitHub(anyMap{"organization": "https://github.com/a"}), "github.organization", "organization must be the name of an organization"},
		{"repository without owner", ofGitHub(anyMap{"repository": "app"}), "github.repository", "repository must be written owner/name"},
		{"GitLab by name", ofGitLab(anyMap{"url": "gitlab.example.com"}), "gitlab.url", "gitlab.url must be an https URL"},
		{"scale set with spaces", ofGitHub(anyMap{"scaleSet": "my set"}), "github.scaleSet", "scaleSet must be a name of letters"},
		{"source with spaces", ofGeneric(anyMap{"source": "every night"}), "generic.source", "generic.source must be a name of letters"},
		{"command with a relative path", ofGeneric(anyMap{"workDir": "work"}), "generic.workDir", "generic.workDir must be an absolute path"},
		{"project and group", ofGitLab(anyMap{"url": "https://g", "projectId": "1", "groupId": "2"}), "config.gitlab", "choose at most one of gitlab.projectId and gitlab.groupId"},
		{"webhook Secret name", webhook(anyMap{"name": "A", "key": "b"}), "secretKeyRef.name", "name must be the name of a Secret"},
		{"webhook Secret key", webhook(anyMap{"name": "a", "key": "b c"}), "secretKeyRef.key", "key must be a key of a Secret"},
		{"webhook Secret namespace", webhook(anyMap{"name": "a", "key": "b", "namespace": "C"}), "secretKeyRef.namespace", "namespace must be the name of a namespace"},
	}
}

// listLifecycleRejections has the rejections of every kind with a lifecycle.
func listLifecycleRejections() []rejection {
	rows := make([]rejection, 0, 8)

	for _, field := range []string{"maxLifetime", "idleTimeout", "jobTimeout", "bootstrapTimeout"} {
		path, want := "spec.lifecycle."+field, field+" must be a time above zero such as"
		rows = append(rows,
			rejection{field + " in words", change{path: "an hour"}, path, want},
			rejection{field + " without a unit", change{path: "30"}, path, want},
			rejection{field + " of zero", change{path: "0s"}, path, want},
			rejection{field + " below zero", change{path: "-5m"}, path, want},
		)
	}

	return append(rows, rejection{
		"keepFailed time of zero", change{"spec.lifecycle": anyMap{"keepFailed": anyMap{"time": "0s"}}},
		"spec.lifecycle.keepFailed.time", "time must be a time above zero such as",
	})
}

func listPoolRejections() []rejection {
	return slices.Concat(listWorkloadRejections("spec.workload"), listLifecycleRejections(), []rejection{
		{"name too long for host names", change{"metadata.name": strings.Repeat("a", 53)}, "", "because the host names of its machines begin with it"},
		{"name with a dot", change{"metadata.name": "a.b"}, "", "because the host names of its machines begin with it"},
		{"template by path", change{"spec.templateRef.name": "ns/a"}, "spec.templateRef.name", "name must be the name of an object"},
		{"exact labels of a scale set", change{"spec.labelMatch": "Exact", "spec.workload.config.github.scaleSet": "set"}, "spec", "labelMatch is not allowed with a scaleSet"},
		{"any of no labels", change{"spec.labelMatch": "Any", "spec.workload.config.github": anyMap{"organization": "example"}}, "spec", "labelMatch Any needs labels or tags"},
		{"another labelMatch", change{"spec.labelMatch": "Some"}, "spec.labelMatch", "supported values"},
		{"one name for all runners", change{"spec.workload.config.github.runnerName": "r1"}, "spec", "runnerName is only allowed in a MachineClaim"},
		{
			"all machines kept", change{
				"spec.lifecycle": anyMap{"keepFailed": anyMap{"machines": int64(2)}}, "spec.scaling": anyMap{"maxReplicas": int64(2)},
			}, "spec", "lifecycle.keepFailed.machines must be below scaling.maxReplicas",
		},
		{"memory without a unit", change{"spec.sizeLabels": anyMap{"maxMemory": "64"}}, "spec.sizeLabels.maxMemory", "maxMemory must be at least 64Mi" + unit + "64Gi"},
		{"disk with an exponent", change{"spec.sizeLabels": anyMap{"maxDisk": "1e999999999"}}, "spec.sizeLabels.maxDisk", "maxDisk must be at least 1Mi" + unit + "200Gi"},
		{"disk without a unit", change{"spec.sizeLabels": anyMap{"maxDisk": "200"}}, "spec.sizeLabels.maxDisk", "maxDisk must be at least 1Mi" + unit + "200Gi"},
		{"min above max", change{"spec.scaling": anyMap{"minReplicas": int64(5), "maxReplicas": int64(2)}}, "spec.scaling", "must not be above scaling.maxReplicas"},
		{"min above the default max", change{"spec.scaling": anyMap{"minReplicas": int64(11)}}, "spec.scaling", "must not be above scaling.maxReplicas"},
		{"min below zero", change{"spec.scaling": anyMap{"minReplicas": int64(-1)}}, "spec.scaling.minReplicas", "greater than or equal to 0"},
		{"delay as text", change{"spec.scaling": anyMap{"scaleDownDelay": "later"}}, "spec.scaling.scaleDownDelay", "scaleDownDelay must be a time such as"},
		{"idle above its most", change{"spec.scaling": anyMap{"warm": anyMap{"idle": int64(3), "maxIdle": int64(2)}}}, "spec.scaling.warm", "maxIdle must not be below scaling.warm.idle"},
		{"window without an end", change{"spec.scaling": anyMap{"schedules": list{anyMap{
			"name": "day", "start": "0 7 * * 1-5", "duration": "0s", "minReplicas": int64(2),
		}}}}, "schedules[0].duration", "duration must be a time above zero such as"},
		{"polling all the time", change{"spec.demand": anyMap{"polling": anyMap{"interval": "0s"}}}, "polling.interval", "interval must be a time above zero such as"},
		{"unknown placement", change{"spec.placement": anyMap{"strategy": "Random"}}, "spec.placement.strategy", `"Spread", "Pack"`},
		{
			"idle machines of a platform that binds them", change{
				"spec.workload": anyMap{"type": "generic", "config": anyMap{"generic": anyMap{"source": "nightly", "command": list{"/usr/bin/make"}}}},
				"spec.scaling":  anyMap{"warm": anyMap{"idle": int64(1)}},
			}, "spec", "created for one job and cannot wait for others",
		},
		{"label twice", change{"spec.workload.config.github.labels": list{"a", "a"}}, "labels[1]", "Duplicate value"},
		{
			"runners that GitLab gives no job", change{"spec.workload": anyMap{
				"type": "gitlab-ci", "config": anyMap{"gitlab": anyMap{"url": "https://g", "tags": list{}}},
			}}, "spec.workload", "config.gitlab needs tags or runUntagged",
		},
		{
			"label that no job can request", change{"spec.workload": anyMap{"type": "generic", "config": anyMap{"generic": anyMap{
				"source": "nightly", "command": list{"/usr/bin/make"}, "labels": list{"linux,gpu"},
			}}}}, "spec.workload", "config.generic.labels must not contain a comma",
		},
		{
			"image with a space", change{"spec.sizeLabels": anyMap{"images": list{
				anyMap{"name": "ubuntu 24.04", "templateRef": anyMap{"name": "a"}},
			}}}, "spec.sizeLabels.images[0].name", "name must be letters, digits, '_', '.' and '-' with a letter or digit first, such as ubuntu-24.04",
		},
	})
}

func listClaimRejections() []rejection {
	return slices.Concat(listWorkloadRejections("spec.workloadConfig"), listLifecycleRejections(), []rejection{
		{"name too long for a host", change{"metadata.name": strings.Repeat("a", 64)}, "", "because it is the host name of its machine"},
		{"name with a dot", change{"metadata.name": "a.b"}, "", "because it is the host name of its machine"},
		{"template by path", change{"spec.templateRef.name": "ns/a"}, "spec.templateRef.name", "name must be the name of an object"},
		{"memory with a unit of disks", change{"spec.size": anyMap{"memory": "8GB"}}, "spec.size.memory", "memory must be a quantity" + unit + "8Gi"},
		{"disk with an exponent", change{"spec.size": anyMap{"disk": "1e999999999"}}, "spec.size.disk", "disk must be a quantity" + unit + "50Gi"},
	})
}
