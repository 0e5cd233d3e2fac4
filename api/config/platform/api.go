// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package platform

import "time"

// API configures `hyperfleet-platform api`.
type API struct {
	Server   Server   `yaml:"server"`
	Database Database `yaml:"database"`
	// InsecureNoAuthentication lets the API listen on all addresses without server.jwt.
	InsecureNoAuthentication bool `yaml:"insecure_no_authentication"`
	// Roles define what callers may do, by claims of their tokens. A caller without a matching entry may
	// do nothing. A caller with several matching entries may do what each of them allows. Required with
	// server.jwt.
	Roles []RoleBinding `yaml:"roles"`
	// Adapters are the adapters that may report on resources of every kind, in addition to those that a
	// kind requires. "*" allows all names.
	Adapters []string `yaml:"adapters"`
	// Entities are the registered kinds.
	Entities []Entity `yaml:"entities"`
	// SpecSchemas is the path of an OpenAPI document with the schemas that entities name.
	SpecSchemas string `yaml:"spec_schemas"`
	// StuckAfter is the time after which a resource that is not reconciled counts as stuck. Default: 30m.
	StuckAfter time.Duration `yaml:"stuck_after"`
	// ChangesKept is how long the change feed keeps changes. Default: 24h.
	ChangesKept time.Duration `yaml:"changes_kept"`
	Log         Log           `yaml:"log"`
}

// Server configures the addresses, the TLS certificate and the authentication of the API.
type Server struct {
	// Address is the address on which the API listens. Default: :8000.
	Address string `yaml:"address"`
	// HealthAddress is the address on which /healthz and /readyz are served. Default: :8080.
	HealthAddress string `yaml:"health_address"`
	// MetricsAddress is the address on which /metrics is served. Default: :9090.
	MetricsAddress string `yaml:"metrics_address"`
	// TLSCertFile and TLSKeyFile are the paths of the certificate and the private key. Without them the
	// API serves plain HTTP.
	TLSCertFile string `yaml:"tls_cert_file"`
	TLSKeyFile  string `yaml:"tls_key_file"`
	// JWT configures the issuers whose tokens are accepted. Without issuers, every caller may do
	// everything, and the API listens on loopback only.
	JWT JWT `yaml:"jwt"`
	// Tenant defines the tenant of a resource, and who can see the resource.
	Tenant Tenant `yaml:"tenant"`
}

// Database configures the PostgreSQL database.
type Database struct {
	// URLFile is the path of a file with the connection URL. The URL contains a password.
	URLFile string `yaml:"url_file"`
	// MaxConnections is the maximum number of connections of this process. Default: 0, which means two
	// for each processor of the process plus one, and at least 4.
	MaxConnections int32 `yaml:"max_connections"`
	// QueryTimeout is the timeout of each transaction. Default: 10s.
	QueryTimeout time.Duration `yaml:"query_timeout"`
}

// JWT configures the issuers whose tokens are accepted.
type JWT struct {
	Configs []Issuer `yaml:"configs"`
}

// Issuer is an issuer whose tokens are accepted.
type Issuer struct {
	// IssuerURL is the claim iss of the issuer's tokens.
	IssuerURL string `yaml:"issuer_url"`
	// Audience is the audience that the tokens must have. If it is empty, any audience is accepted.
	Audience string `yaml:"audience"`
	// JWKCertURL or JWKCertFile is the location of the issuer's keys. Set one of them.
	JWKCertURL  string `yaml:"jwk_cert_url"`
	JWKCertFile string `yaml:"jwk_cert_file"`
	// JWKCertCAFile is the path of the CA bundle for JWKCertURL.
	JWKCertCAFile string `yaml:"jwk_cert_ca_file"`
	// Header is the request header with the token. Default: Authorization, after the word Bearer.
	Header string `yaml:"header"`
	// IdentityClaim is the claim with the caller's name for created_by and the audit log. Default: sub.
	IdentityClaim string `yaml:"identity_claim"`
}

// Tenant defines the tenant of a resource. It is the tenant of the request that created the resource,
// or, for a resource below another resource, the tenant of that resource. A request can only see and
// change the resources of its own tenant.
type Tenant struct {
	// SystemHeader is the header of requests that may access all resources. A proxy in front of the API
	// must set or remove this header and the headers of dimensions.
	SystemHeader string      `yaml:"system_header"`
	Dimensions   []Dimension `yaml:"dimensions"`
}

// Dimension is one part of a tenant.
type Dimension struct {
	// Key is the name of the dimension in a resource's tenancy.
	Key string `yaml:"key"`
	// Claim is the claim of the token, or Header is the header of the request, with the value of the
	// dimension. Set one of them.
	Claim  string `yaml:"claim"`
	Header string `yaml:"header"`
	// Required rejects requests without the dimension. At least one dimension must be required.
	Required bool `yaml:"required"`
}

// Roles of callers. Every role may read everything.
const (
	// RoleReader may only read.
	RoleReader = "reader"
	// RoleWriter may create, change and delete resources.
	RoleWriter = "writer"
	// RoleAdapter may report as the adapters of its entry and hold their leases.
	RoleAdapter = "adapter"
	// RoleSentinel may hold leases.
	RoleSentinel = "sentinel"
	// RoleAdmin may do what a writer may do, and force-delete resources.
	RoleAdmin = "admin"
)

// RoleBinding grants a role to callers with a claim.
type RoleBinding struct {
	// Role is reader, writer, adapter, sentinel or admin.
	Role string `yaml:"role"`
	// Issuer is the issuer_url of the tokens. It is required if there are several issuers, because a
	// claim of one issuer says nothing about the callers of another issuer.
	Issuer string `yaml:"issuer"`
	// Claim is the name of the token's claim: a string or a list of strings. Dots select a field of an
	// object: realm_access.roles. Default: the claim with the caller's name.
	Claim string `yaml:"claim"`
	// Values are the accepted values. The claim must have one of them. "*" accepts any value.
	Values []string `yaml:"values"`
	// Adapters are the names under which callers with the role adapter may report, and AdapterClaim is the
	// claim with such a name. Set one of them.
	Adapters     []string `yaml:"adapters"`
	AdapterClaim string   `yaml:"adapter_claim"`
	// AllTenants lets callers see the resources of all tenants, if all matching entries have it. A
	// resource that they create has no tenant, or the tenant of its parent.
	AllTenants bool `yaml:"all_tenants"`
}

// Entity registers a kind.
type Entity struct {
	// Kind, for example NodePool.
	Kind string `yaml:"kind"`
	// Plural is the collection in the path, for example nodepools.
	Plural string `yaml:"plural"`
	// ParentKind is the kind of the parent, if the kind has one.
	ParentKind string `yaml:"parent_kind"`
	// OnParentDelete is restrict (default), cascade or orphan.
	OnParentDelete string `yaml:"on_parent_delete"`
	// RequiredAdapters must all report Available before a resource is Reconciled, and Finalized before it
	// is deleted.
	RequiredAdapters []string        `yaml:"required_adapters"`
	References       []ReferenceRule `yaml:"references"`
	// Conditions are additional conditions that are computed from statuses with CEL.
	Conditions []MappedCondition `yaml:"conditions"`
	// SpecSchemaName is the name of a schema in spec_schemas. Specs must match the schema.
	SpecSchemaName string `yaml:"spec_schema_name"`
	// RequireSpecSchema prevents the API from starting without the schema.
	RequireSpecSchema bool `yaml:"require_spec_schema"`
	// NameMinLen and NameMaxLen are the minimum and maximum length of names. Default: 1 and 63.
	NameMinLen int `yaml:"name_min_len"`
	NameMaxLen int `yaml:"name_max_len"`
}

// ReferenceRule allows references of one type.
type ReferenceRule struct {
	RefType    string `yaml:"ref_type"`
	TargetKind string `yaml:"target_kind"`
	// Min and Max are the minimum and maximum number of references. Max 0 means any number.
	Min int `yaml:"min"`
	Max int `yaml:"max"`
	// Weak allows the target of a reference to be deleted. The resource that refers to a deleted target
	// is not Reconciled (reason ReferenceMissing) until it is changed. If Weak is false, the deletion of
	// the target fails with status 409.
	Weak bool `yaml:"weak"`
}

// MappedCondition is a condition of a resource that is computed from statuses.
type MappedCondition struct {
	Type   string          `yaml:"type"`
	When   Expression      `yaml:"when"`
	Output ConditionOutput `yaml:"output"`
}

// ConditionOutput is the content of the condition if its expression in when is true.
type ConditionOutput struct {
	Status  Expression `yaml:"status"`
	Reason  Expression `yaml:"reason"`
	Message Expression `yaml:"message"`
}

// Expression is a CEL expression over statuses and resource.
type Expression struct {
	Expression string `yaml:"expression"`
}

// Log configures the log.
type Log struct {
	// Level is the lowest level that is logged: debug, info, warn or error. Default: info.
	Level string `yaml:"level"`
	// Format is the format of the log: json or text. Default: json.
	Format string `yaml:"format"`
}
