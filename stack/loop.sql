-- name: make_loop_table#
-- The scratch table of the direct loop: one row a file, as an application without a queue would keep it.
CREATE TABLE IF NOT EXISTS public.bench_loop (
    item integer PRIMARY KEY,
    variants jsonb,
    done_at timestamptz
);

-- name: plant_loop_row!
-- One row to be updated later; a repeat makes it fresh.
INSERT INTO public.bench_loop (item) VALUES (:item)
ON CONFLICT (item) DO UPDATE SET variants = NULL, done_at = NULL;

-- name: finish_loop_row!
-- What the direct loop writes when a file is done.
UPDATE public.bench_loop SET variants = :variants::jsonb, done_at = clock_timestamp() WHERE item = :item;
