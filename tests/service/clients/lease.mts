// Work that outlasts its lease, and work whose claim is taken away; by `once` as the page has it.
import { Refused, once, semel } from "./once.mjs";

async function lease(key: string): Promise<string> {
  const { data, error } = await semel.GET("/v1/records", { params: { query: { key } } });
  if (data === undefined) throw new Error(error.detail);
  return data.lease_until;
}

// What these have got wrong is found when they are compiled.
export const wrong = [
  // @ts-expect-error a lease is a number
  () => semel.POST("/v1/claims", { body: { key: "a", lease: "30" } }),
  // @ts-expect-error it has to have a key
  () => semel.POST("/v1/claims", { body: { payload: {} } }),
  // @ts-expect-error there is no such operation
  () => semel.GET("/v1/claims"),
  // @ts-expect-error a replay has no claim
  async () => (await semel.POST("/v1/claims", { body: { key: "a" } })).data!.claim,
];

await once("long", {}, async () => {
  const first = await lease("long");
  while ((await lease("long")) === first) await new Promise((resolve) => setTimeout(resolve, 50));
  console.log("renewed");
});

async function takeAway(key: string): Promise<void> {
  const headers = { Authorization: `Bearer ${process.env.OPERATOR}` };
  const body = { name: "release", key, why: "a test", force: true } as const;
  const { data } = await semel.POST("/v1/ops/actions", { body, headers });
  console.log(data?.after);
}

await once("taken", {}, async (lost) => {
  const told = new Promise((resolve) => lost.addEventListener("abort", resolve));
  await takeAway("taken");
  await told;
  console.log("lost");
}).catch((error: unknown) => {
  if (!(error instanceof Refused)) throw error;
  console.log(error.problem?.type);
});
